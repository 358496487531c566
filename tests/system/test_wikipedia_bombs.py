"""Dumps made to fill the memory or to take for ever: pages, lines, heads and entities without end (check 18)."""

import bz2
import gzip
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.dumps import END, HEAD, SOME, flaw, job, page, rows, run
from tests.support.peaks import GIB, PACK_BYTES, measured, unbounded

pytestmark = pytest.mark.system


OPENING = b"<page><title>Swollen</title><ns>0</ns><revision><text>"


@pytest.mark.parametrize(
    ("kind", "fill"),
    [("bz2", b"\0"), ("bz2", b" "), ("gz", b"\0")]
    + [pytest.param(kind, fill, marks=pytest.mark.slow) for kind in ("xz", "zst") for fill in (b"\0", b" ")]
    + [pytest.param(kind, "[[é]]".encode(), marks=pytest.mark.slow) for kind in PACK_BYTES],
)
def test_packed_page_without_end_takes_little_memory(tmp_path: Path, kind: str, fill: bytes, check: Any) -> None:
    pack = PACK_BYTES[kind]
    # 45 MB of zeros are one bzip2 block of some forty bytes; there are 4.5 GB of them here.
    (tmp_path / f"bomb.{kind}").write_bytes(pack(SOME + OPENING) + pack(fill * (45_000_000 // len(fill))) * 100)
    done, peak = measured(tmp_path, f"bomb.{kind}", "--out", "out")
    assert unbounded(done, peak, rf"'bomb.{kind}' .*at byte {len(SOME):,} ") == []
    assert done.code == 3
    assert len(rows(tmp_path / "out")) == 9
    size = (tmp_path / f"bomb.{kind}").stat().st_size
    check(18, f"{kind} of {fill!r}, {size / 1e6:.1f} MB for 4.5 GB: {peak / 2**20:.0f} MiB, the pages before it kept")


def test_a_page_without_end_is_noticed_where_nothing_stops_it(tmp_path: Path, check: Any) -> None:
    """The twin: the same measurement of half a gigabyte without the limit of a page, and a control with it."""
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(SOME + OPENING) + gzip.compress(b" " * 45_000_000) * 12)
    allowed, place = 400 * 2**20, rf"'bomb.gz' .*at byte {len(SOME):,} "
    limit = "from superbloom.prepare.wikipedia import parts; parts.MAX_PAGE_BYTES = "
    run_with = partial(measured, tmp_path, "bomb.gz", "--workers", 1, most=2 * GIB)
    done, stopped = run_with("--out", "control", without=limit + "32 * 2**20")
    assert unbounded(done, stopped, place, allowed) == []
    done, peak = run_with("--out", "twin", without=limit + "2**60")
    assert f"{peak / GIB:.2f} GiB" in unbounded(done, peak, place, allowed)
    noticed = f"540 MB of one page take {peak / 2**20:.0f} MiB, with it {stopped / 2**20:.0f}"
    check.twin(18, "no limit of a page", noticed)


def test_siteinfo_without_end_is_refused(tmp_path: Path, check: Any) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(HEAD) + gzip.compress(b" " * 2**25) * 60)
    done, peak = measured(tmp_path, "bomb.gz", "--out", "out")
    assert unbounded(done, peak, r"'bomb.gz'.* byte [\d,]+") == []
    assert done.code == 2
    assert not (tmp_path / "out").exists()
    check(18, f"a head without end: exit 2, {peak / 2**20:.0f} MiB")


@pytest.mark.parametrize("megabytes", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_endless_line_of_links_takes_little_memory(tmp_path: Path, megabytes: int, check: Any) -> None:
    with (tmp_path / "dump.xml").open("wb") as file:
        file.write(SOME + OPENING)
        for _ in range(megabytes):
            file.write(b"[[Page 1]]" * 100_000)
        file.write(b"</text></revision></page>" + END)
    done, peak = measured(tmp_path, "dump.xml", "--out", "out")
    assert unbounded(done, peak, rf"'dump.xml' .*at byte {len(SOME):,} ") == []
    assert done.code == 3
    assert len(rows(tmp_path / "out")) == 9
    check(18, f"a line of {megabytes:,} MB: {peak / 2**20:.0f} MiB, the pages before it kept")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pages"),
    [
        ("plain", 25),
        pytest.param(
            "bz2", 45, marks=pytest.mark.xfail(reason="takes 1.16 GB of 1: a window holds too many spellings")
        ),
    ],
)
def test_millions_of_spellings_stay_within_the_memory_allowed(tmp_path: Path, kind: str, pages: int) -> None:
    # Pages of a size MediaWiki allows, in which no link is like another, none plain ASCII.
    text = b"".join(
        [SOME, *(page(f"Many {n}", "".join(f"[[é{n}-{i:x}]]" for i in range(100_000))) for n in range(pages)), END]
    )
    (tmp_path / "dump").write_bytes(text if kind == "plain" else bz2.compress(text))
    done, peak = measured(tmp_path, "dump", "--open", "--out", "out", "--memory", 1)
    assert done.code == 0
    assert peak <= 1e9, f"{peak / 1e9:.2f} GB"


@pytest.mark.parametrize("filler", [b"<page><title>Empty</title></page>", b"</page>"], ids=str)
def test_pages_without_text_take_linear_time(tmp_path: Path, filler: bytes) -> None:
    # It takes seconds, or hours where each page is searched for a <text> to the end of the file.
    (tmp_path / "dump.bz2").write_bytes(bz2.compress(SOME + filler * (3_000_000 // len(filler)) + END))
    done = run(tmp_path, job("dump.bz2", "--out", "out"))[0]
    assert flaw(done) is None
    assert {key: row for key, row in rows(tmp_path / "out").items() if key.startswith("Page")} == {
        f"Page {n}": [f"Page {(n + 1) % 9}", f"Page {(n + 2) % 9}"] for n in range(9)
    }


LAUGHS = b'<!DOCTYPE mediawiki [<!ENTITY lol "lol">' + b"".join(
    b'<!ENTITY lol%d "%s">' % (n, b"&lol%s;" % (str(n - 1).encode() if n > 1 else b"") * 10) for n in range(1, 10)
)


def test_entities_are_not_expanded(tmp_path: Path, check: Any) -> None:
    laughing = page("&lol9;", "[[Page 1]] [[&lol9;]]").replace(b"&amp;", b"&")
    (tmp_path / "before.xml").write_bytes(LAUGHS + b"]>\n" + SOME + laughing + END)
    (tmp_path / "after.xml").write_bytes(SOME + LAUGHS + b"]>\n" + laughing + END)
    before, peak = measured(tmp_path, "before.xml", "--out", "before")
    assert flaw(before) is None
    assert before.code == 2
    assert peak <= GIB
    after, peak = measured(tmp_path, "after.xml", "--out", "after")
    assert flaw(after) is None
    assert peak <= GIB
    assert set(rows(tmp_path / "after")) <= {*(f"Page {n}" for n in range(9)), "&lol9;"}
    check(18, f"an entity bomb of 10^9: not expanded, {peak / 2**20:.0f} MiB")
