"""The contract of all readers: files, a folder and options in; a locked, whole corpus folder and a report out."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest

from superbloom.config import InteractionsOptions, SequencesOptions, TextOptions, WikipediaOptions
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions, prepare_interactions
from superbloom.prepare.report import Report
from superbloom.prepare.sequences import prepare_sequences
from superbloom.prepare.text import prepare_text
from superbloom.prepare.wikipedia import prepare_wikipedia
from superbloom.storage import only_writer
from tests.support.logs import LOG, LOOSE, table
from tests.support.wikitext import dump, page


class Reader(NamedTuple):
    """A reader, a file for it, options that keep all of it, and what is known about the report."""

    prepare: Callable[..., Report]
    options: type
    content: bytes
    given: dict[str, Any]
    document: set[str]
    train: tuple[str, int]
    watched: str


READERS = {
    "sequences": Reader(
        prepare_sequences, SequencesOptions, b"a b\nb c\n", {"sep": " "}, {"counts"}, ("", 5), "reading"
    ),
    "interactions": Reader(
        prepare_interactions,
        InteractionsOptions,
        b"user_id,item_id\nu,a\nu,b\n,b\n",
        LOOSE,
        {"counts", "dropped"},
        ("--preset sequence ", 5),
        "reading|counting items|counting users|ordering events|numbering items",
    ),
    "wikipedia": Reader(
        prepare_wikipedia,
        WikipediaOptions,
        dump(page("A", "[[B]]"), page("B", "[[A]]")),
        {"workers": 1},
        {"counts", "top_100", "top_tenth", "damage"},
        ("", 5),
        "reading|merging names|numbering names|following links",
    ),
    "text": Reader(
        prepare_text,
        TextOptions,
        b"the cat and the dog\n" * 9,
        {"min_count": 2, "workers": 1},
        {"counts", "left_out"},
        ("--preset text ", 15),
        "reading|segmenting",
    ),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


@pytest.fixture
def file(tmp_path: Path, reader: Reader) -> Path:
    path = tmp_path / "file"
    path.write_bytes(reader.content)
    return path


def test_a_path_or_several_give_a_corpus_and_a_report(tmp_path: Path, reader: Reader, file: Path) -> None:
    given = [file, str(file), [file], iter([str(file)])]
    outs = [tmp_path / str(number) for number in range(len(given))]
    reports = [reader.prepare(files, out, **reader.given) for files, out in zip(given, outs, strict=True)]
    assert all(report == reports[0] for report in reports)
    assert len({Corpus.open(out).fingerprint() for out in outs}) == 1
    assert Corpus.open(outs[0]).info["source"] == "file"
    assert {path.name for path in tmp_path.iterdir()} == {"file", *(out.name for out in outs)}


def test_a_report_is_a_table_and_a_document(tmp_path: Path, reader: Reader, file: Path) -> None:
    report = reader.prepare(file, tmp_path / "corpus", **reader.given)
    assert json.loads(json.dumps(report.document())) == report.document()
    assert set(report.document()) == reader.document
    assert report.document()["counts"] == report.counts
    assert all(number.strip("0123456789,.%") == "" and what for number, what in report.table())
    assert (report.train_options, report.train_minutes) == reader.train
    assert report.damage == []


def test_options_come_as_a_dataclass_or_by_name(tmp_path: Path, reader: Reader, file: Path) -> None:
    by_name = reader.prepare(file, tmp_path / "by-name", **reader.given)
    assert reader.prepare(file, tmp_path / "dataclass", reader.options(**reader.given)) == by_name
    assert reader.prepare(file, tmp_path / "both", reader.options(), **reader.given) == by_name
    names = ", ".join(spec.name for spec in fields(reader.options))
    with pytest.raises(InputError, match=rf"unknown options \['minimum'\]; {names} are allowed"):
        reader.prepare(file, tmp_path / "corpus", minimum=3)
    assert not (tmp_path / "corpus").exists()


def test_a_folder_has_one_writer(tmp_path: Path, reader: Reader, file: Path) -> None:
    code = """if True:
        import sys
        from superbloom.storage import only_writer
        with only_writer(sys.argv[1], "corpus", overwrite=False):
            print("locked", flush=True)
            input()
    """
    command = [sys.executable, "-c", code, str(tmp_path / "corpus")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match="another process is writing"):
            reader.prepare(file, tmp_path / "corpus", **reader.given)
        process.communicate(b"\n")
    with only_writer(tmp_path / "corpus", "corpus", overwrite=False):
        reader.prepare(file, tmp_path / "corpus", **reader.given)


def test_a_corpus_that_is_there_is_refused_before_anything_is_read(tmp_path: Path, reader: Reader, file: Path) -> None:
    reader.prepare(file, tmp_path / "corpus", **reader.given)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def watch(what: str, total: int | None, in_bytes: bool) -> NoReturn:
        pytest.fail(f"{what} began")

    with pytest.raises(InputError, match="corpus already holds a corpus; --overwrite"):
        reader.prepare(file, tmp_path / "corpus", **reader.given, watch=watch)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    reader.prepare(file, tmp_path / "corpus", **reader.given, overwrite=True)
    assert (tmp_path / "corpus" / "corpus.json").stat().st_mtime_ns > before[tmp_path / "corpus" / "corpus.json"]


def test_each_step_is_watched(tmp_path: Path, reader: Reader, file: Path) -> None:
    watched: dict[str, tuple[int | None, bool]] = {}
    done: dict[str, int] = {}

    @contextmanager
    def watch(what: str, total: int | None, in_bytes: bool) -> Iterator[Callable[[int], None]]:
        watched[what], done[what] = (total, in_bytes), 0

        def count(more: int) -> None:
            done[what] += more

        yield count

    reader.prepare(file, tmp_path / "corpus", **reader.given, watch=watch)
    assert "|".join(watched) == reader.watched
    assert watched["reading"] == (file.stat().st_size, True)
    assert all(total in (None, done[what]) for what, (total, _) in watched.items())


@pytest.mark.parametrize(("memory", "least"), [("interactions", "250,000,000"), ("text", "1,000,000,000")])
def test_memory_is_in_bytes(memory: str, least: str) -> None:
    options = READERS[memory].options
    assert options().memory == 2 * 10**9
    with pytest.raises(InputError, match=rf"memory=2: {least} to 100,000,000,000,000 bytes \(.* GB\) is allowed"):
        options(memory=2)


def test_integers_of_numpy_and_numbers_of_columns_are_stored_as_json(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("u,a\nu,b\n")
    counts = {name: np.int64(value) for name, value in LOOSE.items()}
    prepare_interactions(tmp_path / "log", tmp_path / "corpus", user=0, item=np.int32(1), **counts)
    stored = Corpus.open(tmp_path / "corpus").info["options"]
    assert stored == {
        "user": "0",
        "item": "1",
        "time": None,
        "time_format": None,
        "rating": None,
        "min_rating": None,
        "max_names": None,
        "split": "last",
        "drop_repeats": False,
        **LOOSE,
    }
    made = from_interactions(table(LOG), time="ts", min_item_count=np.int16(2), max_names=np.uint8(9))
    assert json.dumps(made.info["options"])
    assert made.num_ids == 9


def test_files_of_sequences_may_be_held_out(tmp_path: Path) -> None:
    for name, text in {"train": "p a b\nq b c\n", "valid": "r c a\n", "test": "s a a\nt c d\n"}.items():
        (tmp_path / name).write_text(text)
    held_out = {"valid": tmp_path / "valid", "test": [tmp_path / "test"]}
    for keyed, keys in ((True, [*"pqrst"]), (False, ["1", "2", "valid 1", "test 1", "test 2"])):
        out = tmp_path / f"corpus-{keyed}"
        prepare_sequences(tmp_path / "train", out, sep=" ", keyed=keyed, **held_out)
        corpus = Corpus.open(out)
        assert corpus.sequences["key"].to_pylist() == keys
        assert corpus.splits.tolist() == [0, 0, 1, 2, 2]
        assert corpus.info["source"] == "train, valid, test"


def test_an_empty_separator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sep='': a tab, ' ', ',' or another text is allowed"):
        prepare_sequences("file", tmp_path / "corpus", sep="")


def test_readers_do_not_import_torch() -> None:
    names = ("sequences", "interactions", "wikipedia", "text", "bundled", "corpus")
    code = f"import sys\nfor name in {names}: __import__(f'superbloom.prepare.{{name}}')\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
