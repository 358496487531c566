"""`superbloom recommend MODEL LOG`: users of a log, under the rules of files, into a table."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from superbloom import Corpus, Superbloom
from superbloom.prepare.interactions import prepare_interactions
from tests.support.launch import command as superbloom

NEXT = {"mask_as": "next", "alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16, "seq_len": 6}
K = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, and a log of users that it does not know: every way to write the same histories."""
    home = tmp_path_factory.mktemp("log")
    rng = np.random.default_rng(0)
    rows = [[f"n{(start + i) % 40:02d}" for i in range(9)] for start in rng.integers(0, 40, 60)]
    Superbloom(**NEXT).fit(Corpus.from_sequences(rows), steps=5, quiet=True).save_pretrained(home / "model")
    users = {f"u{i:03d}": [f"n{i:02d}" for i in rng.choice(40, rng.integers(1, 9), replace=False)] for i in range(200)}
    users["u007"] = ["unheard"]
    users["u008"] += ["unheard", "unseen"]
    (home / "log.jsonl").write_text(json.dumps(users))
    events = [(user, item, time) for user, items in users.items() for time, item in enumerate(items)]
    shuffled = [events[i] for i in rng.permutation(len(events))]
    (home / "log.csv").write_text("\n".join(["who,what,at", *(",".join(map(str, event)) for event in shuffled)]))
    (home / "log.txt").write_text("".join(f"{' '.join([user, *items])}\n" for user, items in users.items()))
    (home / "log").mkdir()
    for part in range(3):
        table = dict(zip(("who", "what", "at"), map(list, zip(*shuffled[part::3], strict=True)), strict=True))
        pq.write_table(pa.table(table), home / "log" / f"part-{part}.parquet")
    lists = pa.table({"who": list(users), "what": list(users.values())})
    pq.write_table(lists, home / "lists.parquet", row_group_size=50)
    prepare_interactions(
        [home / "log.csv"], home / "corpus", user="who", item="what", time="at", min_item_count=1, min_user_count=1
    )
    return home


def users_of(home) -> dict[str, list[str]]:
    return json.loads((home / "log.jsonl").read_text())


def table_of(home, *arguments: object) -> pa.Table:
    superbloom("recommend", "model", *arguments, "-k", K, "--out", "out.parquet", "--overwrite", cwd=home)
    return pq.read_table(home / "out.parquet")


COLUMNS = ("--user", "who", "--item", "what")


@pytest.mark.parametrize(
    "log",
    [
        ("log.csv", *COLUMNS, "--time", "at"),
        ("log", *COLUMNS, "--time", "at"),
        ("log.txt", "--format", "lines"),
        ("lists.parquet", *COLUMNS),
        ("corpus",),
        ("corpus", "--processes", 2),
    ],
)
def test_every_form_of_a_log_gives_the_rows_of_python(home, log):
    found = table_of(home, *log)
    users = users_of(home)
    assert found["user"].to_pylist() == [user for user in sorted(users) for _ in range(K)]
    with pytest.warns(UserWarning, match="2 names not among the 40 known ones"):
        expected = Superbloom.from_pretrained(home / "model").recommend_for(dict(sorted(users.items())), k=K)
    for column in ("user", "item", "rank", "certified", "source"):
        assert found[column].to_pylist() == expected[column].tolist()
    assert found["score"].to_pylist() == pytest.approx(expected["score"].tolist(), abs=1e-4)


def test_what_is_left_out_is_said_in_lines(home):
    asked = ("recommend", "model", "log.csv", *COLUMNS, "--time", "at", "-k", 1)
    done = superbloom(*asked, "--only", "u007", "--only", "u009", "--only", "nobody", cwd=home)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["u007", "u009"]
    assert done.stderr.splitlines() == [
        "1 users not among the 3 asked for are in the log: 'nobody'; left out",
        "1 names not among the 40 known ones: 'unheard'; left out",
        "1 of 2 users have no item that the model knows; they get what rows begin with (source: start)",
    ]
    told = json.loads(superbloom(*asked, "--out", "told.csv", "--json", "--overwrite", cwd=home).stdout)
    assert told == {"out": "told.csv", "users": 200, "rows": 200, "history": 199, "start": 1}


def test_files_of_rules_hold_for_all_or_for_one(home):
    (home / "allow.tsv").write_text("".join(f"n{i:02d}\n" for i in range(30)) + "u003\tn39\nu004\tunheard\n")
    (home / "exclude.tsv").write_text("n05\nn06\nu003\tn01\nu003\tn02\n")
    (home / "categories.tsv").write_text("".join(f"n{i:02d}\tc{i % 2}\n" for i in range(40)))
    (home / "titles.tsv").write_text("n39\tThe last\tnot this\n")
    rules = ("--allow-file", "allow.tsv", "--exclude-file", "exclude.tsv", "--titles", "titles.tsv", "--no-filter-seen")
    rules += ("--categories", "categories.tsv", "--max-per-category", 3)
    found = table_of(home, "lists.parquet", *COLUMNS, *rules).to_pylist()
    common = {f"n{i:02d}" for i in range(30)} - {"n05", "n06"}
    model, users = Superbloom.from_pretrained(home / "model"), users_of(home)
    options = {"filter_seen": False, "categories": {f"n{i:02d}": str(i % 2) for i in range(40)}, "max_per_category": 3}
    for user in ("u003", "u004", "u005"):
        allowed = common | {"n39"} - {"n01", "n02"} if user == "u003" else common
        allowed = allowed - {"n01", "n02"} if user == "u003" else allowed
        expected = model.recommend_for({user: users[user]}, k=K, items_to_recommend=allowed, **options)
        assert [row["item"] for row in found if row["user"] == user] == expected["item"].tolist()
    assert {row["title"] for row in found if row["item"] == "n39"} <= {"The last"}
    (home / "own.tsv").write_text("u003\tn39\n")
    done = superbloom("recommend", "model", "lists.parquet", *COLUMNS, "--allow-file", "own.tsv", "-k", K, cwd=home)
    assert [line.split("\t")[0::3] for line in done.stdout.splitlines()] == [["u003", "n39"]]
    assert "199 of 200 users have no item left by the rules: no rows" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("log.csv", "--user", "a", "--user", "b"), "--user given 2 times; of a log it is the one column of users"),
        (("log.csv", "--user", "nosuch"), "'log.csv' has no column 'nosuch'"),
        (("nosuch.csv",), "'nosuch.csv' cannot be read"),
        (("corpus", "--engine", "spark"), "--engine spark without --out given"),
        (("corpus", "--engine", "spark", "--out", "o.csv"), "Spark writes a folder of Parquet files"),
        (("corpus", "--engine", "spark", "--out", "nowhere/o"), "lies in no folder"),
        (("corpus", "--engine", "spark", "--out", "corpus"), "corpus already exists; --overwrite"),
        (("corpus", "--engine", "spark", "--out", "corpus", "--overwrite"), "corpus is no table that Spark wrote"),
        (("corpus", "--engine", "spark", "--out", "o", "--processes", 2), "--processes with --engine spark given"),
        (("corpus", "--master", "local[1]"), "--master and --ship-model go with --engine spark"),
        (("corpus", "--processes", 0), "processes=0: 1 or more is allowed"),
        (("corpus", "--categories", "categories.tsv"), "give both, or neither"),
        (("corpus", "--max-per-category", 0), "max_per_category=0"),
        (("corpus", "--allow-file", "bad.tsv"), "is 'a\\tb\\tc'; give an item, or a user, a tab and an item"),
        (("corpus", "--strict"), "2 names not among the 40 known ones"),
    ],
)
def test_mistakes_get_one_line_and_write_nothing(home, arguments, line):
    (home / "bad.tsv").write_text("a\tb\tc\n")
    (home / "categories.tsv").write_text("n01\tx\n")
    before = sorted(home.iterdir())
    message = superbloom("recommend", "model", *arguments, cwd=home, code=2).stderr
    assert line in message
    assert message.count("\n") == 1
    assert sorted(home.iterdir()) == before
