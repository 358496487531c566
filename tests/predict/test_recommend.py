"""From histories to tables of recommendations."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from superbloom import Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.predict.recommend import frame
from tests.support.launch import command as superbloom

NEXT = {"mask_as": "next", "alpha": 2, "dim": 32, "heads": 2, "ffn_dim": 64, "seq_len": 8, "dropout": 0.0}
USERS = 300


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Users who count on from anywhere, round and round."""
    rng = np.random.default_rng(0)
    rows = [[f"n{(start + i) % 60:02d}" for i in range(12)] for start in rng.integers(0, 60, USERS)]
    whole = Corpus.from_sequences(rows, keys=[f"user {number}" for number in range(USERS)])
    cuts = {"valid_from": pa.array([10] * USERS, pa.int32()), "test_from": pa.array([11] * USERS, pa.int32())}
    table = whole.sequences.set_column(2, "split", pa.array([0] * USERS, pa.int8()))
    for name, values in cuts.items():
        table = table.append_column(name, values)
    return Corpus(whole.vocab, table)


@pytest.fixture(scope="module")
def fitted(corpus) -> Superbloom:
    training = {"steps": 60, "batch_size": 64, "learning_rate": 0.02, "warmup": 20, "valid_rows": 100}
    return Superbloom(**NEXT).fit(corpus, **training, quiet=True)


def following(name: str) -> str:
    return f"n{(int(name[1:]) + 1) % 60:02d}"


def test_every_user_gets_what_comes_next(fitted, corpus):
    found = fitted.recommend(k=5)
    assert list(found.columns) == ["user", "item", "score", "rank", "certified", "source"]
    assert len(found) == 5 * USERS
    assert found["user"].nunique() == USERS
    assert found["certified"].all()
    assert (found.groupby("user")["rank"].apply(list).map(tuple) == (1, 2, 3, 4, 5)).all()
    assert (found.groupby("user")["score"].apply(lambda s: s.is_monotonic_decreasing)).all()
    best = dict(zip(*(found[found["rank"] == 1][column] for column in ("user", "item")), strict=True))
    last = {f"user {row}": corpus.vocab.name(corpus.row(row)[-1]) for row in range(USERS)}
    assert np.mean([best[user] == following(last[user]) for user in best]) > 0.9
    for row in (0, 7):
        had = set(corpus.vocab.names(corpus.row(row)))
        assert not had & set(found[found["user"] == f"user {row}"]["item"])


def test_answers_are_those_of_predict(fitted, corpus):
    found = fitted.recommend(["user 4"], k=7, filter_seen=False)
    history = corpus.vocab.names(corpus.row(4))[-7:]
    predicted = fitted.predict(history, k=7, exclude_context=False)
    assert found["item"].tolist() == [prediction.name for prediction in predicted]
    assert found["score"].tolist() == pytest.approx([prediction.score for prediction in predicted], abs=1e-4)


def test_some_users_some_items(fitted):
    found = fitted.recommend(["user 3", "user 1"], k=10, items_to_recommend=["n01", "n02", "n03"], filter_seen=False)
    assert found["user"].drop_duplicates().tolist() == ["user 3", "user 1"]
    assert set(found["item"]) == {"n01", "n02", "n03"}
    assert len(found) == 6  # no more than there are
    with pytest.warns(UserWarning, match=r"2 users not among the 300 known ones: 'nobody', 'no one'; left out"):
        assert fitted.recommend(["nobody", "user 1", "no one"], k=1)["user"].tolist() == ["user 1"]
    with pytest.raises(InputError, match=r"1 users not among .* leave them out, or ask without strict"):
        fitted.recommend(["nobody"], strict=True)
    with pytest.raises(InputError, match="'user 1' given as users"):
        fitted.recommend("user 1")
    with pytest.raises(InputError, match="items_to_recommend is empty"):
        fitted.recommend(items_to_recommend=[])
    with pytest.raises(InputError, match="k=0 given"):
        fitted.recommend(k=0)


def test_lists_that_no_user_has(fitted):
    found = fitted.recommend_for([["n10", "n11"], [], ["n58"]], k=2)
    assert found["user"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found["item"][0] == "n12"
    assert found["item"][4] == "n59"
    named = fitted.recommend_for({"guest": ["n10", "n11"]}, k=1)
    assert named.iloc[0][["user", "item"]].tolist() == ["guest", "n12"]
    long = [f"n{i:02d}" for i in range(30)]
    assert fitted.recommend_for([long], k=1)["item"].tolist() == ["n30"]  # of a long history, the last count
    with pytest.warns(UserWarning, match="1 names not among the 60 known ones: 'n99'; left out"):
        assert fitted.recommend_for([["n10", "n99", "n11"]], k=1)["item"].tolist() == ["n12"]
    with pytest.raises(InputError, match="'n99'"):
        fitted.recommend_for([["n99"]], strict=True)
    with pytest.raises(InputError, match=r"give lists: \[\['n10'\]\]"):
        fitted.recommend_for(["n10"])
    with pytest.raises(InputError, match="give lists of names"):
        fitted.recommend_for("n10")


def test_numbers_are_the_names_that_a_log_makes_of_them():
    rows = [["1", "2", "3"], ["2", "3", "None"], ["nan", "1.5", "2"]]
    corpus = Corpus.from_sequences(rows, keys=["7", "8", "nan"])
    model = Superbloom(**NEXT).fit(corpus, steps=2, quiet=True)
    expected = model.recommend(["7"], k=2)
    assert model.recommend([7.0], k=2).equals(expected)
    assert model.recommend([np.int64(7)], k=2).equals(expected)
    lists = [["1", "2", "3"], [1, 2, np.float32(3)]]
    assert model.recommend_for(lists, k=2)["item"].tolist() == expected["item"].tolist() * 2
    assert model.recommend_for([[1.5]], items_to_recommend=[3.0])["item"].tolist() == ["3"]
    with pytest.warns(UserWarning, match="1 users not among the 3 known ones: None; left out"):
        assert model.recommend([7, float("nan")], k=2).equals(expected)  # what is missing is nobody, whatever names say
    with pytest.warns(UserWarning, match="1 names not among the 6 known ones: None; left out"):
        assert model.recommend_for([[1, None, 2, 3]], k=2)["item"].tolist() == expected["item"].tolist()


@pytest.mark.parametrize("backend", ["polars", "pyarrow"])
def test_a_table_without_rows_has_the_types_of_one_with_rows(backend):
    columns = {"user": ["a"], "item": ["b"], "score": [-0.5], "rank": [1], "certified": [True]}
    empty = frame({name: [] for name in columns}, backend)
    assert len(empty) == 0
    assert empty.schema == frame(columns, backend).schema


def test_what_goes_with_an_item(fitted):
    found = fitted.similar_items(["n10", "n20"], k=3)
    assert list(found.columns) == ["similar_to", "item", "score", "rank", "source"]
    nearest = found[found["rank"] == 1]["item"].tolist()
    assert nearest[0] in ("n09", "n11")  # pairs have no direction
    assert nearest[1] in ("n19", "n21")
    assert not set(found["item"]) & {"n10", "n20"}


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_tables_come_back_as_they_went_in(fitted, corpus, backend):
    corpus.backend = backend
    try:
        found = fitted.recommend(["user 1"], k=2)
    finally:
        corpus.backend = None
    assert type(found).__module__.split(".")[0] == backend


def test_a_loaded_model_asks_for_the_corpus(fitted, corpus, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    loaded = Superbloom.from_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="a loaded model knows no users; give corpus="):
        loaded.recommend()
    assert loaded.recommend(["user 1"], corpus=corpus)["item"].tolist() == fitted.recommend(["user 1"])["item"].tolist()


@pytest.fixture(scope="module")
def folders(fitted, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommend")
    corpus.save(folder / "corpus")
    fitted.save_pretrained(folder / "model")
    return folder


def test_the_command_writes_what_python_returns(fitted, folders, tmp_path):
    asked = ("recommend", folders / "model", folders / "corpus", "-k", 3)
    told = superbloom(*asked, "--user", "user 2", "--user", "stranger")
    expected = fitted.recommend(["user 2"], k=3)["item"].tolist()
    assert [line.split("\t")[3] for line in told.stdout.splitlines()] == expected
    assert "1 users not among the 300 known ones: 'stranger'; left out" in told.stderr
    (tmp_path / "users.txt").write_text("user 5\nuser 2\n")
    superbloom(*asked, "--users-file", tmp_path / "users.txt", "--out", tmp_path / "found.parquet")
    table = pa.parquet.read_table(tmp_path / "found.parquet")
    assert table["user"].to_pylist() == ["user 5"] * 3 + ["user 2"] * 3
    assert table["item"].to_pylist()[3:] == expected
    done = superbloom(*asked, "--out", tmp_path / "found.csv")
    assert "900 recommendations for 300 users are in" in done.stdout
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ('"user","item","score","rank","certified","source"', 901)
    found = json.loads(superbloom(*asked, "--user", "user 2", "--json").stdout)
    assert [row["item"] for row in found] == expected
    for words, told in (
        (("--user", "stranger", "--strict"), "'stranger'; leave them out"),
        (("--out", tmp_path / "found.txt"), "a file that ends in .csv or .parquet is allowed"),
        (("--out", tmp_path / "nowhere" / "found.csv"), "lies in none"),
    ):
        message = superbloom(*asked, *words, code=2).stderr
        assert told in message
        assert message.count("\n") == 1


def test_a_newer_log_may_have_items_the_model_does_not_know(fitted, folders, tmp_path):
    newer = Corpus.from_sequences([["n05", "new", "n06"], ["new", "newer"], ["n01"]], keys=["a", "b", "c"])
    with pytest.warns(UserWarning, match=r"2 names not among the 60 known ones: 'new(er)?', 'new(er)?'; left out"):
        found = fitted.recommend(k=3, corpus=newer)
    assert found["user"].tolist() == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    lists = {"a": ["n05", "n06"], "b": [], "c": ["n01"]}
    assert found["item"].tolist() == fitted.recommend_for(lists, k=3)["item"].tolist()
    assert fitted.recommend(["c"], k=1, corpus=newer)["item"].tolist() == ["n02"]  # no warning: c has none
    with pytest.raises(InputError, match="1 names not among the 60 known ones: 'new'; leave them out"):
        fitted.recommend(["a"], corpus=newer, strict=True)
    newer.save(tmp_path / "newer")
    told = superbloom("recommend", folders / "model", tmp_path / "newer", "--user", "a", "-k", 1)
    assert told.stdout.startswith("a\t1\t")
    assert told.stderr == "1 names not among the 60 known ones: 'new'; left out\n"


def test_evaluate_counts_new_items_as_missed_and_says_how_many(folders, tmp_path):
    rows = [[f"n{(start + i) % 60:02d}" for i in range(5)] for start in range(40)] + [["n00", "n01", "new"]] * 40
    Corpus.from_sequences(rows).save(tmp_path / "newer")
    told = superbloom("evaluate", folders / "model", tmp_path / "newer", "--split", "train").stdout
    figures = json.loads(
        superbloom("evaluate", folders / "model", tmp_path / "newer", "--split", "train", "--json").stdout
    )
    hidden = figures["unknown"]["hidden"]
    assert 0 < hidden < figures["rows"]
    assert figures["unknown"] == {"names": 1, "of": 45, "hidden": hidden}
    line = (
        f"1 of the corpus's 45 names are not known to this model: {hidden} of {figures['rows']} hidden elements count"
    )
    assert line in " ".join(told.split())


FORMULAS = ["=1+1", "+1", "-1", "@a", "\tb", "\rc"]


def test_safe_csv_marks_what_a_spreadsheet_would_run(tmp_path):
    harmless = ["a=1", "'=1", "1+1", ""]
    rows = [[f"{user} {item}" for item in range(3)] for user in range(4)]
    names = [*FORMULAS, "b\n=1", "plain"]
    corpus = Corpus.from_sequences([names] * 20 + rows, keys=[*FORMULAS, *harmless, *map(str, range(14))])
    corpus.save(tmp_path / "corpus")
    Superbloom(**NEXT).fit(corpus, steps=1, quiet=True).save_pretrained(tmp_path / "model")
    asked = ("recommend", tmp_path / "model", tmp_path / "corpus", "-k", 20, "--no-filter-seen")
    (tmp_path / "titles.tsv").write_text("plain\t=2+2\n")
    asked += ("--titles", tmp_path / "titles.tsv")
    found = {}
    for name, option in (("plain", []), ("safe", ["--safe-csv"])):
        superbloom(*asked, *option, "--out", tmp_path / f"{name}.csv")
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            found[name] = list(csv.reader(file))
    plain, safe = found["plain"], found["safe"]
    assert {user for user, *_ in plain} >= {*FORMULAS, *harmless}
    assert {item for _, item, *_ in plain} >= {*names}
    marked = [[f"'{cell}" if cell[:1] in tuple("=+-@\t\r") else cell for cell in row] for row in plain]
    for row, score in zip(marked, (row[2] for row in plain), strict=True):
        row[2] = score  # numbers stay numbers
    assert safe == marked
    assert {title for *_, title in safe} == {"title", "", "'=2+2"}


@pytest.mark.parametrize("out", [(), ("--out", "found.parquet")])
def test_safe_csv_is_refused_where_no_csv_is_written(folders, tmp_path, out):
    message = superbloom("recommend", folders / "model", folders / "corpus", "--safe-csv", *out, cwd=tmp_path, code=2)
    given = " ".join(out) or "no --out"
    assert message.stderr == f"error: --safe-csv with {given} given; it goes with an --out that ends in .csv\n"
    assert not list(tmp_path.iterdir())


def test_titles_ride_along(fitted, folders, tmp_path):
    expected = fitted.recommend(["user 2"], k=3)["item"].tolist()
    (tmp_path / "titles.tsv").write_text(f"{expected[0]}\tThe First\tan author\n\n{expected[2]}\tThe Third\n")
    asked = ("recommend", folders / "model", folders / "corpus", "-k", 3, "--user", "user 2")
    asked += ("--titles", tmp_path / "titles.tsv")
    lines = [line.split("\t")[3:] for line in superbloom(*asked).stdout.splitlines()]
    assert lines == [[expected[0], "The First"], [expected[1], ""], [expected[2], "The Third"]]
    superbloom(*asked, "--out", tmp_path / "found.csv")
    header, first, *_ = (tmp_path / "found.csv").read_text().splitlines()
    assert header == '"user","item","score","rank","certified","source","title"'
    assert first.endswith('"The First"')
    (tmp_path / "titles.tsv").write_text("n01\tOne\nn02 Two\n")
    assert "is 'n02 Two'; give an item, a tab and its title" in superbloom(*asked, code=2).stderr


def test_the_command_extends_a_model(folders, tmp_path):
    (tmp_path / "names.txt").write_text("n60\nn61\nn07\n")
    (tmp_path / "like.tsv").write_text("n60\tn58\tn59\n")
    asked = ("extend", folders / "model", tmp_path / "names.txt", "--like", tmp_path / "like.tsv")
    told = superbloom(*asked, "--out", tmp_path / "more").stdout
    assert told.startswith("2 new names, 1 were known; 62 in all, room for 28 more.")
    model = Superbloom.from_pretrained(tmp_path / "more").model
    first, second = (model.bloom.table[model.vocab.id(name)] for name in ("n58", "n59"))
    assert model.bloom.table[60].tolist() == [first[0], second[1]]
    (tmp_path / "names.txt").write_text("\n".join(f"name {i}" for i in range(50)))
    message = superbloom(*asked[:3], "--out", tmp_path / "other", code=2).stderr
    assert "50 new names, but reserve=0.25 has room for 30 more than the 60 there are" in message


def test_training_goes_on_by_the_command(folders, tmp_path):
    done = superbloom(
        *(
            "train",
            folders / "corpus",
            "--from-model",
            folders / "model",
            "--out",
            tmp_path / "on",
            "--steps",
            2,
            "--json",
        )
    )
    assert json.loads(done.stdout)["steps"] == 2
    message = superbloom(
        *("train", folders / "corpus", "--from-model", folders / "model", "--out", tmp_path / "off", "--dim", 8), code=2
    ).stderr
    assert "from_model decides sizes and choices of the model" in message
