"""The commands as a user types them: files in, answers out, one clear line for every mistake."""

import errno
import json
import lzma
import math
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import superbloom
from superbloom import Corpus, cli
from superbloom.prepare.bundled import LINKS, build, bundled_corpus
from tests.support.launch import command as run
from tests.support.real_data import real_data

LONELY_PAGE = "<page><title>A</title><ns>0</ns><revision><text>[[B]] [[C]]</text></revision></page>"
MASK_ROWS = ["Copenhagen\tDenmark\tOslo\tNorway", "Oslo\tNorway\tDenmark", "Copenhagen\tDenmark\tAarhus"] * 30


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a text file, the corpus made of it, and a model trained on that, all by the command line."""
    home = tmp_path_factory.mktemp("home")
    (home / "rows.tsv").write_text("\n".join(MASK_ROWS) + "\n")
    run("prepare", "sequences", "rows.tsv", "--out", "corpus", cwd=home)
    options = ("--alpha", 2, "--dim", 16, "--heads", 2, "--steps", 20, "--batch-size", 16)
    trained = run("train", "corpus", "--out", "model", *options, "--json", cwd=home)
    assert json.loads(trained.stdout)["steps"] == 20
    return home


def test_help_names_every_command_and_imports_nothing_heavy():
    script = "import sys; sys.argv = ['superbloom', '--help']\nimport atexit, superbloom.cli\n"
    script += "atexit.register(lambda: print(*sorted({'torch', 'pyarrow', 'lightning', 'numpy'} & set(sys.modules))))\n"
    done = subprocess.run([sys.executable, "-c", script + "superbloom.cli.main()"], capture_output=True, text=True)
    for command in ("demo", "prepare", "train", "evaluate", "predict", "similar", "inspect"):
        assert command in done.stdout
    assert done.stdout.splitlines()[-1] == "", "heavy imports before --help"


@pytest.mark.system
def test_train_help_shows_every_option_with_its_default(home):
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", run("train", "--help", cwd=home).stdout).split())
    for words in (
        "--alpha <int> ids that share a bucket; 1 is no hashing (default: 4)",
        "--norm <pre|post>",
        "--resume",
    ):
        assert words in text


def test_a_corpus_is_prepared_and_inspected(home):
    facts = json.loads(run("inspect", "corpus", "--json", cwd=home).stdout)
    assert facts["counts"]["names"] == 5
    assert facts["counts"]["rows"] == 90
    assert facts["counts"]["ids"] == 300
    found = json.loads(run("inspect", "corpus", "Denmark", "--json", cwd=home).stdout)
    assert found == {"Denmark": {"id": 0, "count": 90}}


def test_names_may_be_separated_by_anything(tmp_path):
    (tmp_path / "log.txt").write_text("user1 a b c\nuser2 b c\n")
    done = run("prepare", "sequences", "log.txt", "--sep", " ", "--keyed", "--out", "c", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["counts"]["ids"] == 5


@pytest.mark.system
def test_the_installed_command_is_the_one_that_is_tested(home):
    """All other tests fork a process that calls main; this one starts what pip installed, as users do."""
    installed = Path(sys.executable).with_name("superbloom")
    options = {"cwd": home, "capture_output": True, "text": True, "check": True}
    version = subprocess.run([installed, "--version"], **options)
    assert version.stdout == run("--version").stdout == f"superbloom {superbloom.__version__}\n"
    found = subprocess.run([installed, "predict", "model", "Oslo", "--json"], **options)
    assert json.loads(found.stdout) == json.loads(run("predict", "model", "Oslo", "--json", cwd=home).stdout)


@pytest.mark.parametrize("packed", ["gz", "xz", "zst", "bz2"])
def test_packed_files_are_read_as_they_are(home, tmp_path, packed):
    import pyarrow as pa

    kinds = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
    path = tmp_path / f"rows.tsv.{packed}"
    text = (home / "rows.tsv").read_bytes()
    if packed == "xz":
        path.write_bytes(lzma.compress(text))
    else:
        with pa.CompressedOutputStream(str(path), kinds[packed]) as stream:
            stream.write(text)
    run("prepare", "sequences", path, "--out", tmp_path / "corpus", cwd=tmp_path)
    assert (tmp_path / "corpus" / "sequences.arrow").read_bytes() == (home / "corpus" / "sequences.arrow").read_bytes()


def test_a_dump_becomes_a_corpus(tmp_path):
    pages = "".join(
        f"<page><title>Page {i}</title><ns>0</ns>"
        f"<revision><text>[[page {i % 3}]] and [[Nowhere]]</text></revision></page>"
        for i in range(12)
    )
    (tmp_path / "dump.xml").write_text(f"<mediawiki><siteinfo></siteinfo>{pages}</mediawiki>")
    done = run("prepare", "wikipedia", "dump.xml", "--out", "wiki", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["counts"]["kept"] == 9  # pages 0 to 2 link to themselves
    run("prepare", "wikipedia", "dump.xml", "--out", "wiki", "--overwrite", "--open", "--max-entities", 2, cwd=tmp_path)
    facts = json.loads(run("inspect", "wiki", "Nowhere", "--json", cwd=tmp_path).stdout)
    assert facts["Nowhere"] == {"id": 0, "count": 12}


def test_predict_prints_ranked_names_with_their_certificate(home):
    done = run("predict", "model", "Copenhagen", "[MASK]", "-k", 3, cwd=home)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"   1 +-?\d+\.\d{3} +\d+\.\d%  \w+", lines[0])
    assert "certified: no other name is more likely under this model" in lines[3]


def test_predict_as_json_is_one_document(home):
    done = run(
        "predict", "model", "Copenhagen", "[MASK]", "[MASK]", "-k", 2, "--exclude", "Denmark", "--json", cwd=home
    )
    document = json.loads(done.stdout)
    assert document["context"] == ["Copenhagen", "[MASK]", "[MASK]"]
    assert [len(found) for found in document["predictions"]] == [2, 2]
    assert all(p["certified"] and p["name"] != "Denmark" for found in document["predictions"] for p in found)


def answers(home: Path, *arguments: object, model: str = "model") -> list[dict]:
    """What `predict` answers to one [MASK]."""
    (found,) = json.loads(run("predict", model, *arguments, "--json", cwd=home).stdout)["predictions"]
    return found


def test_predict_as_json_carries_the_probabilities(home):
    found = answers(home, "Copenhagen", "[MASK]")
    assert [set(p) for p in found] == [{"name", "score", "certified", "probability"}] * 5
    assert sum(p["probability"] for p in found) == pytest.approx(1, abs=1e-5)
    assert [math.exp(p["score"]) for p in found] == pytest.approx([p["probability"] for p in found], rel=1e-5)
    text = run("predict", "model", "Copenhagen", "[MASK]", cwd=home).stdout.splitlines()
    assert [line.split()[2] for line in text[:5]] == [f"{p['probability']:.1%}" for p in found]
    assert text[5].strip() == "(certified: no other name is more likely under this model)"


def test_predict_answers_only_with_allowed_names(home):
    everyone = answers(home, "Copenhagen")
    (home / "allowed.txt").write_text("Oslo\r\n\nAarhus\n")
    scores = {p["name"]: p["score"] for p in everyone}
    for options, names in (
        (("--allow", "Oslo"), {"Oslo"}),
        (("--allow", "Oslo", "--allow", "Norway", "--allow", "Oslo"), {"Oslo", "Norway"}),
        (("--allow-file", "allowed.txt"), {"Oslo", "Aarhus"}),
        (("--allow-file", "allowed.txt", "--allow", "Denmark", "--exclude", "Oslo"), {"Aarhus", "Denmark"}),
    ):
        found = answers(home, "Copenhagen", *options)
        assert [p["name"] for p in found] == [p["name"] for p in everyone if p["name"] in names]
        assert [p["score"] for p in found] == pytest.approx([scores[p["name"]] for p in found], abs=1e-5)


def test_predict_can_leave_out_the_names_of_the_context(home):
    found = answers(home, "Copenhagen", "[MASK]", "Oslo", "--exclude-context")
    assert {p["name"] for p in found} == {"Denmark", "Norway", "Aarhus"}
    found = answers(home, "Copenhagen", "--exclude-context", "--exclude", "Norway")
    assert {p["name"] for p in found} == {"Denmark", "Oslo", "Aarhus"}


def test_predict_can_ask_for_a_lowest_score(home):
    everyone = answers(home, "Copenhagen")
    found = answers(home, "Copenhagen", "--min-score", (everyone[1]["probability"] + everyone[2]["probability"]) / 2)
    assert [p["name"] for p in found] == [p["name"] for p in everyone[:2]]
    done = run("predict", "model", "Copenhagen", "--min-score", 1000, cwd=home)
    assert "no name is left: all are excluded, or less likely than --min-score" in done.stdout


def test_predict_with_weights_is_a_weighted_sum_of_the_hashes(home):
    both, first, second = (
        {p["name"]: p["score"] for p in answers(home, "Copenhagen", "--combine", combine)}
        for combine in ("1,1", "0.7,0.3", "0.3,0.7")
    )
    # 0.7 a + 0.3 b and 0.3 a + 0.7 b add up to a + b.
    assert {name: first[name] + second[name] for name in first} == pytest.approx(both, abs=1e-4)
    assert first != pytest.approx(second, abs=1e-3)
    plain = {p["name"]: p["score"] for p in answers(home, "Copenhagen", "--combine", "sum")}
    assert plain == pytest.approx(both, abs=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_predict_in_a_lower_precision_scores_nearly_the_same(home, precision):
    scores, lower = (
        {p["name"]: p["score"] for p in answers(home, "Copenhagen", "--precision", way)} for way in ("fp32", precision)
    )
    assert lower == pytest.approx(scores, abs=0.1)
    assert lower != scores


def test_predict_without_the_prior_takes_all_names_as_equally_frequent(home):
    with_prior = {p["name"]: p["score"] for p in answers(home, "Oslo", "--prior")}
    without = {p["name"]: p["score"] for p in answers(home, "Oslo", "--no-prior")}
    assert sum(map(math.exp, without.values())) == pytest.approx(1, abs=1e-5)
    assert with_prior != pytest.approx(without, abs=1e-2)


def test_an_allow_file_may_hold_every_name_that_a_corpus_may(tmp_path):
    odd = "two\u2028parts"
    (tmp_path / "rows.tsv").write_text(f"{odd}\tb\tc\nb\tc\t{odd}\n" * 30, encoding="utf-8")
    run("prepare", "sequences", "rows.tsv", "--out", "corpus", cwd=tmp_path)
    run("train", "corpus", "--out", "model", "--steps", 1, "--dim", 16, cwd=tmp_path)
    assert [p["name"] for p in answers(tmp_path, "b", "--allow", odd)] == [odd]
    (tmp_path / "allowed.txt").write_text(f"{odd}\n", encoding="utf-8")
    assert [p["name"] for p in answers(tmp_path, "b", "--allow-file", "allowed.txt")] == [odd]


def test_when_every_name_is_excluded_it_says_so(home):
    names = ("Copenhagen", "Denmark", "Oslo", "Norway", "Aarhus")
    exclude = [word for name in names for word in ("--exclude", name)]
    assert "no name is left" in run("predict", "model", "Oslo", *exclude, cwd=home).stdout
    assert len(run("predict", "model", "Oslo", "-k", 10**15, cwd=home).stdout.splitlines()) == 6


def test_a_new_run_forgets_the_checkpoint_of_an_older_one(home):
    options = ("--alpha", 2, "--dim", 16, "--heads", 2, "--batch-size", 16)
    run("train", "corpus", "--out", "twice", "--steps", 3, *options, cwd=home)
    refused = run("train", "corpus", "--out", "twice", "--steps", 2, *options, cwd=home, code=2)
    assert "twice already holds a model; --overwrite" in refused.stderr
    (home / "twice.run" / "run.json").write_text("{}")
    refused = run("train", "corpus", "--out", "twice", "--resume", cwd=home, code=2)
    assert "was not written by superbloom, or is damaged" in refused.stderr
    refused = run("train", "corpus", "--out", "twice", "--steps", 2, *options, cwd=home, code=2)
    assert "twice.run holds an interrupted run; --resume continues it, --overwrite deletes it" in refused.stderr
    diverging = ("--learning-rate", 1e30, "--warmup", 1, "--overwrite")
    run("train", "corpus", "--out", "twice", "--steps", 9, *diverging, *options, cwd=home, code=2)
    assert not list((home / "twice.run").glob("*.ckpt"))


def test_a_model_that_is_there_is_replaced_only_by_its_own_run_or_when_asked(home):
    options = ("--alpha", 2, "--dim", 16, "--heads", 2, "--batch-size", 16)

    def model() -> bytes:
        return (home / "own" / "model.safetensors").read_bytes()

    run("train", "corpus", "--out", "own", "--steps", 3, *options, cwd=home)
    first = model()
    for more in ((), ("--steps", 1)):
        refused = run("train", "corpus", "--out", "own", *more, *options, cwd=home, code=2)
        assert refused.stderr.endswith(
            "own already holds a model; --overwrite (overwrite=True in Python) replaces it, or choose another --out\n"
        )
    assert model() == first
    run("train", "corpus", "--out", "own", "--resume", "--steps", 5, cwd=home)
    resumed = model()
    assert resumed != first
    for checkpoint in (home / "own.run").glob("*.ckpt"):  # a finished run that has nothing to resume from
        checkpoint.unlink()
    refused = run("train", "corpus", "--out", "own", "--resume", "--steps", 1, cwd=home, code=2)
    assert "own already holds a model" in refused.stderr
    assert model() == resumed
    run("train", "corpus", "--out", "own", "--overwrite", "--steps", 1, *options, cwd=home)
    assert model() not in (first, resumed)


def test_every_command_that_writes_refuses_what_is_there(home, tmp_path):
    (tmp_path / "names.txt").write_text("Ribe\n")
    commands = {
        "corpus": ("prepare", "sequences", home / "rows.tsv", "--out", "corpus"),
        "grown": ("extend", home / "model", "names.txt", "--out", "grown", "--reserve", 5),
        "report": ("evaluate", home / "model", home / "corpus", "--out", "report"),
        "for.csv": ("recommend", home / "model", home / "corpus", "--user", 1, "--out", "for.csv"),
    }
    for name, command in commands.items():
        run(*command, cwd=tmp_path)
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        refused = run(*command, cwd=tmp_path, code=2)
        assert refused.stderr.startswith(f"error: {name} already "), refused.stderr
        assert refused.stderr.count("\n") == 1
        assert "--overwrite" in refused.stderr
        assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
        run(*command, "--overwrite", cwd=tmp_path)
        assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) != before
    (tmp_path / "corpus").rename(tmp_path / "demo")
    (tmp_path / "superbloom-demo").mkdir()
    (tmp_path / "demo").rename(tmp_path / "superbloom-demo" / "corpus")
    assert "superbloom-demo/corpus already holds a corpus" in run("demo", cwd=tmp_path, code=2).stderr


def test_evaluate_prints_a_table_and_writes_the_plot(home):
    done = run("evaluate", "model", "corpus", "--out", "report", cwd=home)
    for words in ("this model", "popularity", "co-occurrence", "rec@10", "token rec@1", "certified"):
        assert words in done.stdout
    assert (home / "report" / "deciles.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((home / "report" / "metrics.json").read_text())
    assert set(figures["recall"]) == {"1", "10", "20"}
    again = json.loads(run("evaluate", "model", "corpus", "--json", cwd=home).stdout)
    assert again == figures


def test_evaluate_prints_the_papers_sum_ghosts_and_calibration(home):
    def row(table: str, name: str) -> list[str]:
        return next((re.findall(r"\d\.\d{3}", line) for line in table.splitlines() if f" {name} " in line), [])

    printed = run("evaluate", "model", "corpus", cwd=home).stdout
    assert len(row(printed, "the paper's sum")) == 9  # three recalls, each with its interval
    assert re.search(r"ghosts \d+\.\d% of ten answers; calibration error 0\.\d{4}", " ".join(printed.split()))
    figures = json.loads(run("evaluate", "model", "corpus", "--json", "--precision", "int8", cwd=home).stdout)
    assert set(figures["by sum"]) == {"1", "10", "20"}
    bins = figures["calibration"]["bins"]
    gaps = sum(abs(each["predicted"] - each["observed"]) * each["answers"] for each in bins)
    assert figures["calibration"]["error"] == pytest.approx(gaps / sum(each["answers"] for each in bins))


def test_inspect_shows_a_model_and_a_names_digest(home):
    facts = json.loads(run("inspect", "model", "--json", cwd=home).stdout)
    assert facts["model"]["alpha"] == 2
    assert facts["steps"] == 20
    found = json.loads(run("inspect", "model", "Oslo", "--json", cwd=home).stdout)["Oslo"]
    assert len(found["digest"]) == 2
    assert [(bucket["hash"], bucket["token"]) for bucket in found["buckets"]] == [*enumerate(found["digest"])]
    assert all({"bucket", "members", "mates"} <= bucket.keys() for bucket in found["buckets"])
    assert "shared with" in run("inspect", "model", "Oslo", cwd=home).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict model Copenhagan", "'Copenhagan' is not among the 5 names; did you mean 'Copenhagen'?"),
        ("predict model Copen", "'Copen' is not among the 5 names; did you mean 'Copenhagen'?"),
        ("predict model Copenhagen -k 0", "k=0 given; whole numbers from 1 are allowed"),
        ("predict corpus Copenhagen", "a model folder holds config.json; corpus is a corpus folder"),
        ("predict nowhere Copenhagen", "a model folder holds config.json; nowhere does not exist"),
        (
            "predict model Copenhagen --combine mean",
            "combine='mean' given; posterior, sum, min, max, a weight for each hash, or a function are allowed",
        ),
        (
            "predict model Oslo --combine 0.7",
            "combine='0.7' given; posterior, sum, min, max, a weight for each hash, or a function",
        ),
        ("predict model Oslo --combine 0.7,x", "combine='0.7,x' given; numbers with commas between them are weights"),
        (
            "predict model Oslo --combine 0.7,0.2,0.1",
            "combine=[0.7, 0.2, 0.1] given; a positive weight for each of the 2 hashes is allowed",
        ),
        ("predict model Oslo --precision fp8", "precision='fp8': 'fp32' or 'bf16' or 'int8' is allowed"),
        ("evaluate model corpus --precision fp8", "precision='fp8': 'fp32' or 'bf16' or 'int8' is allowed"),
        ("predict model Oslo --min-score nan", "min_score=nan given; a number"),
        ("predict model Oslo --allow Nobody", "'Nobody' is not among the 5 names"),
        ("predict model Oslo --allow-file nothing.txt", "'nothing.txt' cannot be read: No such file or directory"),
        ("predict model Oslo --allow-file corpus", "'corpus' cannot be read: Is a directory"),
        ("predict model Oslo --allow-file latin1.tsv", "line 2 of 'latin1.tsv' is not UTF-8"),
        ("predict model Oslo --allow-file one.tsv", "'a\\ta' is not among the 5 names"),
        (
            "predict model Oslo --allow-file empty.tsv",
            "allow holds no name; give at least one, or leave",
        ),
        ("train corpus --out m2 --alpha 0 --steps 1", "alpha=0: 1 or more is allowed"),
        ("train corpus --out m2 --alpha 9 --steps 1", "the largest alpha that works is 2"),
        ("train corpus --out m2 --heads 3 --steps 1", "heads=3 does not divide dim=128: choose one of [1, 2, 4"),
        ("train corpus --out m2 --steps 5 --minutes 1", "steps=5, minutes=1.0: give one of them"),
        ("train corpus --out m2 --hash-seed -1 --steps 1", "hash_seed=-1: 0 to 2^63 − 1 is allowed"),
        ("train corpus --out m2 --seed -1 --steps 1", "seed=-1: 0 to"),
        ("train corpus --out m2 --alpha 2 --loss sampled --steps 1", "loss='sampled' with num_hashes=2"),
        ("train corpus --out . --steps 1", "is the current folder or one above it; name a folder inside it"),
        ("prepare sequences rows.tsv --out .", ". is the current folder or one above it"),
        ("evaluate model corpus --seed -1", "seed=-1: 0 to 2^63 − 1 is allowed"),
        ("evaluate model corpus --out rows.tsv", "rows.tsv is a file, a corpus or a model folder"),
        ("prepare sequences tab.tsv --keyed --out c2", "line 1 of 'tab.tsv' begins with '\\t'"),
        ("prepare sequences spaces.txt --out c2", "no line of 'spaces.txt' holds '\\t', so each would be one name"),
        ("inspect rows.tsv", "a corpus folder holds corpus.json; rows.tsv is a file"),
        ("train corpus --out m2 --preset huge --steps 1", "preset 'huge' given; baseline,"),
        ("train model --out m2 --steps 1", "a corpus folder holds corpus.json; model is a model folder"),
        ("train corpus --out rows.tsv --steps 1", "rows.tsv exists and is not a model folder"),
        ("evaluate model corpus --out model", "model is a file, a corpus or a model folder; choose another --out"),
        ("evaluate model corpus --split all", "split='all': 'train' or 'valid' or 'test' is allowed"),
        ("prepare sequences nothing.tsv --out c2", "'nothing.tsv' cannot be read: No such file or directory"),
        ("prepare sequences empty.tsv --out c2", "the rows hold 0 distinct names; at least 2 are needed"),
        ("prepare sequences one.tsv --out c2", "the rows hold 1 distinct names; at least 2 are needed"),
        ("prepare sequences latin1.tsv --out c2", "line 2 of 'latin1.tsv' is not UTF-8"),
        ("prepare sequences rows.tsv --out c2 --min-count 1000", "0 of 5 names are left by min_count=1000"),
        ("prepare sequences rows.tsv --out model", "model exists and is not a corpus folder"),
        ("prepare wikipedia rows.tsv --out c2", "rows.tsv"),
        (
            "prepare sequences binary.tsv --out c2",
            "is not UTF-8 (byte 0x80 at position 117 of the line); this is no",
        ),
        ("prepare sequences utf16.tsv --out c2", "convert it first: iconv -f UTF-16 -t UTF-8"),
        ("prepare text binary.tsv --out c2", "this is no text: give a text file"),
        ("prepare wikipedia lonely.xml --out c2", "2 of 2 links lead to pages that are not in these files"),
        (
            "recommend model corpus --user nosuch",
            "no user 'nosuch' in corpus; it has 90 users, for example '1', '2'",
        ),
        ("recommend model corpus --user a --user b --out r.csv", "no user 'a', 'b' in corpus; it has 90 users"),
        ("predict model --text Oslo[MASK]", "this model reads names; give a list of names (on the command line, names"),
        ("predict model Oslo --server http://127.0.0.1:9", "the folder model and --server http://127.0.0.1:9 given"),
        ("inspect model Nobody", "'Nobody' is not among the 5 names"),
        ("inspect .", "a corpus folder holds corpus.json; . has none"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_nothing(home, arguments, message):
    (home / "empty.tsv").write_text("\n\n")
    (home / "one.tsv").write_text("a\ta\na\n")
    (home / "tab.tsv").write_text("\ta\tb\n")
    (home / "spaces.txt").write_text("1 a b\n2 b c\n")
    (home / "binary.tsv").write_bytes(bytes(range(11, 256)) * 9)
    (home / "utf16.tsv").write_bytes("a\tb\nMalmö\tb\n".encode("utf-16"))
    (home / "lonely.xml").write_text(f"<mediawiki>{LONELY_PAGE}</mediawiki>")
    (home / "latin1.tsv").write_bytes("a\tb\nMalmö\tb\n".encode("latin-1"))
    before = sorted(home.iterdir())
    done = run(*arguments.split(), cwd=home, code=2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(home.iterdir()) == before


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "make room or choose another --out"),
        (errno.EACCES, "check the path and its permissions"),
        (errno.ENOTDIR, "check the path and its permissions"),
        (errno.EIO, "check the disk or the connection"),
    ],
)
def test_a_file_that_fails_is_one_line_with_what_to_do(monkeypatch, capsys, code, remedy):
    def fail() -> None:
        raise OSError(code, os.strerror(code), "here/vocab.arrow")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    line = f"error: {os.strerror(code)} (here/vocab.arrow); {remedy}, and run the command again\n"
    assert capsys.readouterr().err == line


@pytest.mark.system
def test_the_shell_completes_commands_and_options(home):
    installed = Path(sys.executable).with_name("superbloom")
    for typed, expected in (("superbloom ex", ["extend"]), ("superbloom extend --over", ["--overwrite"])):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        environment = os.environ | words | {"_SUPERBLOOM_COMPLETE": "complete_bash"}
        done = subprocess.run([installed], cwd=home, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected
    assert "--install-completion" in run("--help", cwd=home).stdout


def test_names_ids_and_rows_that_are_left_out_are_counted(tmp_path):
    (tmp_path / "rows.tsv").write_text("a\tb\nb\ta\tc\nd\n")
    done = run("prepare", "sequences", "rows.tsv", "--min-count", 2, "--out", "corpus", cwd=tmp_path)
    found = dict(reversed(line.split("  ", 1)) for line in map(str.strip, done.stdout.splitlines()) if "  " in line)
    assert (found["names"], found["rows"], found["ids"]) == ("2", "2", "4")
    assert found["names left out: too rare"] == "2"
    assert found["ids of these names left out"] == "2"
    assert found["rows left out: no name is left in them"] == "1"
    told = run("prepare", "sequences", "rows.tsv", "--min-count", 2, "--out", "again", "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["left_out"] == {"names": 2, "ids": 2, "rows": 1}
    assert "left_out" not in json.loads(
        run("prepare", "sequences", "rows.tsv", "--out", "c", "--json", cwd=tmp_path).stdout
    )


def real(*words: object, cwd: Path, before: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    """What a process of its own prints that calls `before` first: one that is forked has its libraries already."""
    command = [sys.executable, "-m", "superbloom", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, preexec_fn=before, timeout=120)


@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "gigabytes", "library"),
    [
        ("predict model Oslo", 0.2, "torch needs 1.0 GB"),
        ("inspect corpus", 0.4, "numpy needs 0.5 GB"),
        ("predict model Oslo", 0.7, "torch needs 1.0 GB"),
        ("train corpus --out m2 --steps 1", 0.2, "numpy needs 0.5 GB"),
        ("train corpus --out m2 --steps 1", 0.7, "torch needs 1.0 GB"),
        ("train corpus --out m2 --steps 1", 1.2, "lightning needs 2.0 GB"),
        ("prepare interactions log.csv --out c2", 1.4, "duckdb needs 3.0 GB"),
    ],
)
def test_too_few_addresses_are_one_line(home, arguments, gigabytes, library):
    (home / "log.csv").write_text("user_id,item_id\n1,a\n")
    allowed = int(gigabytes * 10**9)
    before = sorted(home.iterdir())
    done = real(*arguments.split(), cwd=home, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (allowed,) * 2))
    assert done.returncode == 2
    words = f"error: ulimit -v allows {gigabytes:.2f} GB of address space; {library} or more: raise the limit"
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1
    assert sorted(home.iterdir()) == before


@pytest.mark.system
@pytest.mark.parametrize(("arguments", "gigabytes"), [("--help", 0.2), ("predict model Oslo", 4)])
def test_enough_addresses_are_enough(home, arguments, gigabytes):
    allowed = int(gigabytes * 10**9)
    done = real(*arguments.split(), cwd=home, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (allowed,) * 2))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
@pytest.mark.parametrize("limited", [True, False])
def test_memory_that_runs_out_anywhere_is_one_line(monkeypatch, capsys, error, limited):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(cli, "check_imports", lambda: None)
    monkeypatch.setattr(cli, "address_limit", lambda: 10**9 if limited else None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = "raise ulimit -v, lower --batch-size" if limited else "lower --batch-size"
    assert capsys.readouterr().err.startswith(f"error: out of memory; {told}")


def test_a_library_that_is_missing_is_no_lack_of_memory(monkeypatch):
    def fail() -> None:
        raise ImportError("No module named 'x'")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ImportError, match="No module named 'x'"):
        cli.main()


@pytest.mark.system
@pytest.mark.parametrize("command", ["predict MODEL Oslo", "train CORPUS --out m2", "prepare sequences ROWS --out c2"])
def test_a_current_folder_that_was_removed_is_one_line(home, tmp_path, command):
    folder = tmp_path / "removed"
    folder.mkdir()
    for word, name in (("MODEL", "model"), ("CORPUS", "corpus"), ("ROWS", "rows.tsv")):
        command = command.replace(word, str(home / name))
    done = real(*command.split(), cwd=folder, before=folder.rmdir)
    assert done.returncode == 2
    assert done.stderr == "error: the current folder was removed; change to another one, and run the command again\n"


def test_an_unknown_option_or_command_exits_2_too(home):
    run("train", "corpus", "--out", "m2", "--depth", 3, cwd=home, code=2)
    run("cook", cwd=home, code=2)


def test_names_cannot_write_to_the_terminal(tmp_path):
    rows = ["evil\x1b[31m\tb\tc", "b\tc\tevil\x1b[31m"] * 30
    (tmp_path / "rows.tsv").write_text("\n".join(rows))
    run("prepare", "sequences", "rows.tsv", "--out", "corpus", cwd=tmp_path)
    run("train", "corpus", "--out", "model", "--steps", 1, "--dim", 16, cwd=tmp_path)
    done = run("predict", "model", "b", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert r"evil\x1b[31m" in done.stdout


def test_the_built_in_corpus_holds_the_papers_entities():
    corpus = bundled_corpus()
    assert corpus.num_ids == 20_000
    for name in ("Copenhagen", "Denmark", "Tunisia", "Tunis", "Thailand", "Bangkok", "Miles Davis", "Jazz"):
        assert name in corpus.vocab
    assert LINKS.stat().st_size <= 1_500_000


@pytest.mark.slow
def test_the_built_in_corpus_is_rebuilt_byte_for_byte():
    assert build(real_data("wiki", "enwik8.xz")) == LINKS.read_bytes()


def test_every_public_name_can_be_imported():
    for name in superbloom.__all__:
        assert getattr(superbloom, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = superbloom.nothing


@pytest.mark.parametrize("kind", ["sequences", "interactions"])
def test_after_training_the_next_command_is_told(tmp_path, kind):
    if kind == "sequences":
        corpus, hint = Corpus.from_sequences([["a", "b", "c"]] * 30), 'predict model NAME… "[MASK]"'
    else:
        events = pa.table({"user_id": [1, 1, 1, 2, 2, 2] * 5, "item_id": [1, 2, 3] * 10})
        corpus, hint = Corpus.from_interactions(events), "recommend model corpus --user USER"
    corpus.save(tmp_path / "corpus")
    options = ("--steps", 1, "--dim", 16, "--ffn-dim", 16, "--alpha", 1, "--num-hashes", 1)
    assert hint in run("train", "corpus", "--out", "model", *options, cwd=tmp_path).stdout
