"""Mistakes on the command line: one clear line, exit code 2, and nothing left behind."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from superbloom import cli
from tests.support.launch import command as run

LONELY_PAGE = "<page><title>A</title><ns>0</ns><revision><text>[[B]] [[C]]</text></revision></page>"


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
        ("prepare synthetic --out c2 --rows 0", "rows=0: 1 to 1,000,000,000 is allowed"),
        ("reproduce --out r2", "give a corpus folder, or --lab for made-up worlds"),
        ("reproduce corpus --lab --out r2", "--lab for made-up worlds, not both"),
        ("prepare sequences rows.tsv --out .", ". is the current folder or one above it"),
        ("evaluate model corpus --seed -1", "seed=-1: 0 to 2^63 − 1 is allowed"),
        ("evaluate model corpus --out rows.tsv", "rows.tsv is a file, a corpus or a model folder"),
        ("prepare sequences tab.tsv --keyed --out c2", "line 1 of 'tab.tsv' begins with '\\t'"),
        ("prepare sequences spaces.txt --out c2", "no line of 'spaces.txt' holds '\\t', so each would be one name"),
        ("inspect rows.tsv", "a corpus folder holds corpus.json; rows.tsv is a file"),
        ("train corpus --out m2 --preset huge --steps 1", "preset 'huge' given; entities,"),
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
