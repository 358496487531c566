"""Files that unpack to far more than they are, and lines without end, through the readers of names, logs and texts."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.peaks import GIB, PACK_BYTES, measured, unbounded

pytestmark = pytest.mark.system

LOG = "".join(f"u{n % 500},i{n % 7}\n" for n in range(40_000)).encode()


def packed(folder: Path, head: bytes, fill: bytes, times: int = 100, kind: str = "gz") -> Path:
    """A file that goes on for many times 16 MB."""
    path = folder / f"bomb.{kind}"
    path.write_bytes(PACK_BYTES[kind](head) + PACK_BYTES[kind](fill * (2**24 // len(fill))) * times)
    return path


READERS: dict[str, tuple[list[str], bytes, bytes, str]] = {
    "sequences of short rows": (["sequences"], b"a\tb\n", b"a\tb\n", "gz"),
    "sequences, bz2 of zeros": (["sequences"], b"a\tb\n", b"\0", "bz2"),
    "sequences, xz of one row": (["sequences"], b"a\tb\n", b"ab\t", "xz"),
    "a log of events": (["interactions"], b"user_id,item_id\n" + LOG, b"u1,i1\n", "gz"),
    "a log of zeros": (["interactions"], b"user_id,item_id\n" + LOG, b"\0", "zst"),
    "a log with a line without end": (["interactions"], b"user_id,item_id\n" + LOG, b"x", "gz"),
    "a log with a quotation without end": (["interactions"], b"user_id,item_id\n" + LOG + b'u1,"', b"x\n", "gz"),
    "a text of short words": (["text", "--min-count", "1"], b"a text\n\n", b"ab ", "gz"),
    "a text of lines": (["text", "--min-count", "1"], b"a text\n\n", b"ab\n", "bz2"),
    "a text without a space": (["text", "--min-count", "1"], b"a text\n\n", b"x", "gz"),
}
QUICK = ("a log with a line without end", "a text without a space")
# How well a file is packed is looked at from 4 GiB on, which take many minutes to read; here, from 32 MiB on.
SOON = "from superbloom.prepare import files; files.BOMB_BYTES = 2**25"
NEVER = "from superbloom.prepare import files; files.BOMB_BYTES = 2**60"


def place(path: Path) -> str:
    """A pattern: the file, and where in it."""
    return rf"line [\d,]+ of '{path.name}' |'{path.name}'.* byte [\d,]+"


@pytest.mark.parametrize("what", [pytest.param(w, marks=[] if w in QUICK else [pytest.mark.slow]) for w in READERS])
def test_a_bomb_is_stopped(tmp_path: Path, what: str, check: Any) -> None:
    (reader, *options), head, fill, kind = READERS[what]
    path = packed(tmp_path, head, fill, kind=kind)
    done, peak = measured(tmp_path, path.name, *options, "--out", "out", reader=reader, without=SOON)
    assert unbounded(done, peak, place(path)) == []
    assert done.code == 2
    assert not (tmp_path / "out").exists()
    sooner = "" if reader == "sequences" else ", looked at from 32 MiB on"  # names are held in memory, and never more
    why = f"for its ratio{sooner}" if "times its size" in done.err else "for a line"
    check(
        18,
        f"{what}, {path.stat().st_size / 1e6:.1f} MB for 1.7 GB: exit 2 with file and place, {why}, "
        f"{peak / 2**20:.0f} MiB",
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a log of events", "a text of short words"])
def test_a_small_file_that_packs_as_well_is_read(tmp_path: Path, what: str, check: Any) -> None:
    """The control: it may be honest, as logs in order are; it takes no more memory than another."""
    (reader, *options), head, fill, kind = READERS[what]
    path = packed(tmp_path, head, fill, times=8, kind=kind)
    done, peak = measured(
        tmp_path, path.name, *options, "--memory", 1, "--out", "out", reader=reader, without=NEVER, most=8 * GIB
    )
    assert unbounded(done, peak, "") == []
    assert done.code == 0
    check(18, f"{what}, {path.stat().st_size / 1e6:.1f} MB for 134 MB, below 4 GiB: read, {peak / 2**20:.0f} MiB")


NO_LIMITS = "from superbloom.prepare import files; files.BOMB_RATIO = files.MAX_LINE_BYTES = 2**40"


@pytest.mark.slow
def test_a_bomb_is_noticed_where_nothing_stops_it(tmp_path: Path, check: Any) -> None:
    """The twin: the same measurement without the limits of a line and of what may come out of a packed file.

    And a control with them, stopped by the system where the twin is, if it came to that.
    """
    path = packed(tmp_path, b"a\tb\n", b"ab\t", times=20)
    done, stopped = measured(tmp_path, path.name, "--out", "control", reader="sequences", without=SOON)
    assert unbounded(done, stopped, place(path)) == []
    done, peak = measured(tmp_path, path.name, "--out", "twin", reader="sequences", without=NO_LIMITS)
    assert f"{peak / GIB:.2f} GiB" in unbounded(done, peak, place(path))
    noticed = f"{peak / 2**20:.0f} MiB where the system stopped it, with them {stopped / 2**20:.0f}"
    check.twin(18, "no limit of a line, nor of what may be packed", noticed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "head", "fill"),
    [
        (
            ["--format", "lines"],
            b"".join(b"u%d i%d i%d\nu%d i1\n" % (n, n % 7, n % 5, n) for n in range(20_000)),
            b"x ",
        ),
        (["--user", "0", "--item", "1"], LOG.replace(b",", b"::"), b"x"),
    ],
    ids=["lines", "colons"],
)
def test_a_line_without_end_is_stopped(
    tmp_path: Path, options: list[str], head: bytes, fill: bytes, check: Any
) -> None:
    """In a file that is not packed, so that only the length of the line tells."""
    with (tmp_path / "log").open("wb") as file:
        file.write(head)
        for _ in range(64):
            file.write(fill * (2**24 // len(fill)))
    done, peak = measured(tmp_path, "log", *options, "--out", "out", reader="interactions")
    assert unbounded(done, peak, r"'log' .*longer than .*near byte [\d,]+") == []
    assert done.code == 2
    check(18, f"a line of 1 GB in a log ({' '.join(options)}): exit 2 with file and place, {peak / 2**20:.0f} MiB")


@pytest.mark.slow
def test_the_longest_line_takes_little_memory(tmp_path: Path, check: Any) -> None:
    """As long as it may be, of names of two letters, which take most; and of 64 MB, as was once allowed."""
    names = b"ab\tcd\t"
    (tmp_path / "rows").write_bytes(names * (2**24 // len(names)) + b"\n")
    (tmp_path / "longer").write_bytes(names * (2**26 // len(names)) + b"\n")
    done, peak = measured(tmp_path, "rows", "--out", "out", reader="sequences")
    assert unbounded(done, peak, "") == []
    check(18, f"the longest line of names that is read, 16 MiB: {peak / 2**20:.0f} MiB")
    limit = "from superbloom.prepare import files; files.MAX_LINE_BYTES = 2**40"
    _, peak = measured(tmp_path, "longer", "--out", "out", reader="sequences", without=limit)
    assert peak > 2**30
    check.twin(18, "no limit of a line", f"64 MiB of names take {peak / 2**20:.0f} MiB")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one row group", "absurd counts"])
def test_a_table_that_unpacks_to_anything_is_stopped(tmp_path: Path, kind: str, check: Any) -> None:
    """Parquet of a few megabytes: 60 million equal events in one row group; and one that says it has far more."""
    size = 60_000_000
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int8)), pa.array(["x" * 50]))
    table = pa.table({"user_id": same, "item_id": same})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=size)
    if kind == "absurd counts":
        data = bytearray((tmp_path / "log.parquet").read_bytes())
        data[-60:-40] = b"\xff" * 20
        (tmp_path / "log.parquet").write_bytes(bytes(data))
    done, peak = measured(tmp_path, "log.parquet", "--out", "out", reader="interactions")
    assert unbounded(done, peak, "error: ") == []
    assert done.code == 2
    check(18, f"Parquet, {kind}: exit 2, {peak / 2**20:.0f} MiB")


@pytest.mark.slow
def test_an_honest_packed_file_is_read(tmp_path: Path) -> None:
    """The control: as repetitive as logs are, and beyond where the ratio is looked at."""
    rng = np.random.default_rng(0)
    rows = "".join(f"u{a}\ti{b}\ti{c}\n" for a, b, c in rng.integers(50, size=(2_000_000, 3)).tolist()).encode()
    (tmp_path / "rows.gz").write_bytes(gzip.compress(rows))
    assert len(rows) > 2**24
    done, _ = measured(tmp_path, "rows.gz", "--out", "out", reader="sequences")
    assert done.code == 0, done.err
