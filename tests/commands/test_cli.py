"""The commands as a user types them: files in, answers out, one clear line for every mistake."""

import json
import lzma
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer

import superbloom
from superbloom import Corpus, cli
from superbloom.commands import prepare
from superbloom.commands.examples import EXAMPLES
from superbloom.prepare.bundled import FREQUENT, LINKS, build, bundled_corpus
from tests.support.launch import command as run
from tests.support.real_data import real_data


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
        "--alpha <int> ids that share a bucket; 1 is no hashing (default: as catalogue, time and memory allow; see",
        "--norm <word>",
        "(pre | post; default: pre)",
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
    assert "certified: no other allowed name is more likely under this model" in lines[3]


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
    found = answers(home, "Copenhagen", "[MASK]", "--include-context")
    assert [set(p) for p in found] == [{"name", "score", "certified", "probability"}] * 5
    assert sum(p["probability"] for p in found) == pytest.approx(1, abs=1e-5)
    assert [math.exp(p["score"]) for p in found] == pytest.approx([p["probability"] for p in found], rel=1e-5)
    text = run("predict", "model", "Copenhagen", "[MASK]", "--include-context", cwd=home).stdout.splitlines()
    assert [line.split()[2] for line in text[:5]] == [f"{p['probability']:.1%}" for p in found]
    assert text[5].strip() == "(certified: no other allowed name is more likely under this model)"


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
    for options in ((), ("--exclude-context",)):  # rows of this corpus never repeat a name
        found = answers(home, "Copenhagen", "[MASK]", "Oslo", *options)
        assert {p["name"] for p in found} == {"Denmark", "Norway", "Aarhus"}
    assert len(answers(home, "Copenhagen", "[MASK]", "Oslo", "--include-context")) == 5
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
    with_prior = {p["name"]: p["score"] for p in answers(home, "Oslo", "--prior", "--include-context")}
    without = {p["name"]: p["score"] for p in answers(home, "Oslo", "--no-prior", "--include-context")}
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
    assert len(run("predict", "model", "Oslo", "-k", 10**15, cwd=home).stdout.splitlines()) == 5  # all but Oslo


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
    for words in ("this model", "popularity", "co-occurrence", "recall@10", "token recall@1", "certified"):
        assert words in done.stdout
    assert (home / "report" / "deciles.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((home / "report" / "metrics.json").read_text())
    assert set(figures["recall"]) == {"1", "10", "20"}
    again = json.loads(run("evaluate", "model", "corpus", "--json", cwd=home).stdout)
    assert again == figures


def test_evaluate_prints_the_papers_sum_ghosts_and_calibration(home):
    def row(table: str, name: str) -> list[str]:
        return next((re.findall(r"[ ±]([01]?\.\d{3})", line) for line in table.splitlines() if name in line), [])

    printed = run("evaluate", "model", "corpus", cwd=home).stdout
    assert len(row(printed, "the paper's sum")) == 6  # three recalls, each with half of its interval
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
    assert corpus.num_ids == 259_996
    assert bundled_corpus(FREQUENT).num_ids == FREQUENT
    for name in ("Copenhagen", "Denmark", "Tunisia", "Tunis", "Thailand", "Bangkok", "Miles Davis", "Jazz"):
        assert name in corpus.vocab
    assert LINKS.stat().st_size <= 3_500_000


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


def test_every_command_shows_examples_that_it_would_read():
    groups = {"prepare": typer.main.get_command(prepare.app).commands}
    commands = {name: one for name, one in typer.main.get_command(cli.app).commands.items() if name not in groups}
    for name, command in (commands | groups["prepare"]).items():
        known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert 2 <= len(EXAMPLES[name]) <= 3
        for example in EXAMPLES[name]:
            words = shlex.split(example, comments=True)
            assert words[1] == ("prepare" if name in groups["prepare"] else name)
            assert known.issuperset(word for word in words if word.startswith("-")), example
        assert "Examples:" in command.epilog
