"""Dumps that are cut, damaged, poisoned or oddly encoded: every page that can be read is kept (check 18)."""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import CASES
from tests.support.dumps import (
    END,
    HEAD,
    SOME,
    Done,
    content,
    files,
    flaw,
    job,
    page,
    plain_pages,
    rows,
    run,
    streams,
    tag_ends,
    two_pages,
    varied_pages,
    whole,
    zstd,
)

pytestmark = pytest.mark.system


# Files that are cut or damaged.


def kept(folder: Path, done: Done) -> list[tuple[str, list[str]]]:
    """The rows of the corpus a damaged dump became, none if it was refused; it may have no other flaw."""
    assert flaw(done) is None
    assert folder.exists() == (done.code != 2)
    return list(rows(folder).items()) if folder.exists() else []


@pytest.mark.parametrize("beside", [{0}, pytest.param({-1, 1}, marks=pytest.mark.slow)])
def test_plain_dump_is_kept_up_to_any_cut(tmp_path: Path, beside: set[int]) -> None:
    text = two_pages()
    cuts = sorted({min(len(text), end + by) for end in tag_ends(text) for by in beside})
    for cut in cuts:
        (tmp_path / f"{cut}.xml").write_bytes(text[:cut])
    results = run(tmp_path, *(job(f"{cut}.xml", "--open", "--workers", 1, "--out", cut) for cut in cuts))
    wrong, expected = {}, list({"A": ["B", "C"], "B": ["A", "C"]}.items())
    for cut, done in zip(cuts, results, strict=True):
        pages = text.count(b"</page>", 0, cut)
        code = 0 if b"</mediawiki>" in text[:cut] else 3 if pages else 2
        if flaw(done) or done.code != code or kept(tmp_path / str(cut), done) != expected[:pages]:
            wrong[cut] = flaw(done) or (done.code, f"{code} expected", done.err)
    assert wrong == {}


def test_strict_writes_nothing(tmp_path: Path) -> None:
    pages = plain_pages(40)
    text = whole(pages)
    broken = {"plain": text[:-900], "bz2": b"".join(streams(pages))[:-300], "gz": gzip.compress(text)[:-99]}
    broken["untitled"] = b"".join([HEAD, *pages, b"<page></page>", END])
    for name, data in (broken | {"sound": text}).items():
        (tmp_path / name).write_bytes(data)
    assert run(tmp_path, job("sound", "--out", "older", "--strict"))[0].code == 0
    before = files(tmp_path / "older")
    outs = [(name, out) for name in broken for out in ("older", "new")]
    for (name, _), done in zip(
        outs, run(tmp_path, *(job(name, "--out", out, "--strict", "--overwrite") for name, out in outs)), strict=True
    ):
        assert flaw(done) is None
        assert done.code == 2, name
        assert f"'{name}'" in done.err
        assert re.search(r"byte [\d,]+", done.err)
    assert files(tmp_path / "older") == before
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("*.parts"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump longer than what is read of it at once, and the corpus it becomes."""
    folder = tmp_path_factory.mktemp("large")
    pages = plain_pages(1_600, links=25)
    (folder / "dump.xml").write_bytes(whole(pages))
    done = run(folder, job("dump.xml", "--open", "--workers", 1, "--out", "expected"))[0]
    assert (done.code, len(rows(folder / "expected"))) == (0, 1_600)
    return folder


PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[], Any]]] = {
    "bz2 of small blocks": (lambda text: bz2.compress(text, 1), bz2.BZ2Decompressor),
    "bz2 of many streams": (
        lambda text: b"".join(bz2.compress(text[at : at + 66_666]) for at in range(0, len(text), 66_666)),
        bz2.BZ2Decompressor,
    ),
    "gz": (gzip.compress, lambda: zlib.decompressobj(31)),
    "xz": (lzma.compress, lzma.LZMADecompressor),
}


@cache
def packed_text(text: bytes, kind: str) -> tuple[bytes, list[int]]:
    """A text, packed, and how many bytes come out of each beginning of that."""
    pack, unpacker = PACKERS[kind]
    packed, lengths, unpack = pack(text), [0], unpacker()
    for at in range(len(packed)):
        data = unpack.decompress(packed[at : at + 1])
        length = lengths[-1]
        while data:
            length += len(data)
            data = b"" if unpack.eof else unpack.decompress(b"")
        lengths.append(length)
        if unpack.eof:
            unpack = unpacker()
    return packed, lengths


@cache
def expected_rows(folder: Path) -> list[tuple[str, list[str]]]:
    return list(rows(folder / "expected").items())


def difference(folder: Path, out: str, done: Done, readable: bytes) -> str | None:
    """How the corpus of a damaged dump is not what the readable part of its text says."""
    pages, expected = readable.count(b"</page>"), expected_rows(folder)
    found = list(rows(folder / out).items()) if (folder / out).exists() else []
    codes = (0, 3) if END in readable else (3,) if pages else (2,)
    if flaw(done) or done.code not in codes or found != expected[:pages]:
        return flaw(done) or f"code {done.code}, {len(found)} rows instead of {pages}: {done.err}"
    return None


@pytest.mark.parametrize(
    "kind", ["bz2 of small blocks", "bz2 of many streams", "gz", pytest.param("xz", marks=pytest.mark.slow)]
)
def test_packed_dump_is_kept_up_to_any_cut(large: Path, kind: str) -> None:
    text = (large / "dump.xml").read_bytes()
    packed, lengths = packed_text(text, kind)
    size, many = len(packed), min(16, CASES // 125) if kind.startswith("bz2") else 4
    cuts = [*range(size // many, size - 50, size // many), *range(size - 13, size, 48 // many)]
    for cut in cuts:
        (large / f"{kind} {cut}").write_bytes(packed[:cut])
    options = ("--open", "--workers", 1, "--out")
    given = [(f"{kind} {cut}", *options, f"{kind} {cut} out") for cut in cuts]
    results = run(large, *(job(*words, pieces=100_000, bare=n % 2 > 0) for n, words in enumerate(given)))
    wrong = {
        f"{cut} of {size}": difference(large, f"{kind} {cut} out", done, text[: lengths[cut]])
        for cut, done in zip(cuts, results, strict=True)
    }
    assert {cut: how for cut, how in wrong.items() if how} == {}


def test_cut_zstd_dump_keeps_what_precedes_it(large: Path) -> None:
    packed = zstd((large / "dump.xml").read_bytes())
    for part in (30, 60, 90):
        (large / f"{part}.zst").write_bytes(packed[: len(packed) * part // 100])
    results = run(large, *(job(f"{part}.zst", "--open", "--out", f"zst {part}") for part in (30, 60, 90)))
    expected = expected_rows(large)
    for part, done in zip((30, 60, 90), results, strict=True):
        assert (part, done.code) == (part, 3), done.err
        found = kept(large / f"zst {part}", done)
        assert found == expected[: len(found)]
        assert len(found) > 16 * (part - 20)  # blocks of 128 kB


# What a bzip2 stream of one block begins with, and where.
HEADS = {"its header": 2, "its mark": 6, "its checksum": 11, "its first place": 15}


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("bz2 of small blocks", "in a block"),
        *(("bz2 of many streams", f"in {part}") for part in ("a block", *HEADS)),
    ],
)
def test_flipped_byte_leaves_the_blocks_before_it(large: Path, kind: str, where: str) -> None:
    text = (large / "dump.xml").read_bytes()
    packed, lengths = packed_text(text, kind)
    places = [len(packed) * part // 100 for part in (77, 93)]
    if where != "in a block":
        places = [packed.index(b"BZh91AY&SY", place) + HEADS[where.removeprefix("in ")] for place in places]
    for place in places:
        flipped = packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :]
        (large / f"{kind} at {place}").write_bytes(flipped)
    cases = [(f"{kind} at {place}", bare, text[: lengths[place]]) for place in places for bare in (False, True)]
    cases = cases if CASES > 1000 else cases[::3]  # the first place with rapidgzip, the second without
    options, wrong = ("--open", "--workers", 1, "--out"), {}
    jobs = [job(name, *options, f"{name} {bare}", pieces=30_000, bare=bare) for name, bare, _ in cases]
    for (name, bare, intact), done in zip(cases, run(large, *jobs), strict=True):
        how = difference(large, f"{name} {bare}", done, intact)
        if how or not re.search(rf"'{name}' .*block at byte [\d,]+", done.err):
            wrong[f"{name}{' without rapidgzip' * bare}"] = how or done.err
    assert wrong == {}


@pytest.mark.parametrize(("size", "bare"), [(None, False), (20_000, True)])
def test_streams_lost_in_the_middle_are_told(large: Path, size: int | None, bare: bool) -> None:
    packed = streams(plain_pages(1_600, links=25), step=100)
    lost = [*packed[:13], bytes(sum(map(len, packed[13:15]))), *packed[15:]]
    (large / "lost.bz2").write_bytes(b"".join(lost))
    out = f"lost {size} {bare}"
    done = run(large, job("lost.bz2", "--open", "--workers", 1, "--out", out, pieces=size, bare=bare))[0]
    assert (done.code, len(rows(large / out))) == (3, 1_200), done.err
    assert kept(large / out, done) == expected_rows(large)[:1_200]


def test_file_without_pages_leaves_nothing_behind(tmp_path: Path) -> None:
    nothing = {"empty": b"", "space": b" \n", "head": HEAD, "siteinfo": HEAD + END, "cut": SOME[: len(HEAD) + 50]}
    nothing |= {"other": b"<html></html>", "picture": bytes(range(256)), "bz2": bz2.compress(HEAD + END)}
    for name, data in nothing.items():
        (tmp_path / name).write_bytes(data)
    wrong = {}
    for name, done in zip(
        nothing, run(tmp_path, *(job(name, "--out", f"{name} out") for name in nothing)), strict=True
    ):
        if done.code != 2 or not re.fullmatch(rf"error: .*\b{name}\b.*\n", done.err):
            wrong[name] = f"code {done.code}: {done.err}"
        elif left := [path.name for path in tmp_path.glob(f"{name} out*")]:
            wrong[name] = left
    assert wrong == {}


POISON = {
    "NUL in the text": page("Odd", "x\0y [[Page 1]] [[Pa\0ge 2]]"),
    "NUL in the title": page("O\0dd", "[[Page 1]]"),
    "NULs between pages": bytes(1000),
    "surrogates as bytes": page("Odd", "[[Page 1]] [[SURROGATE]]").replace(b"SURROGATE", b"\xed\xa0\x80\xed\xb0\x80"),
    "surrogates as bytes in the title": page("Odd SURROGATE").replace(b"SURROGATE", b"\xed\xa0\x80"),
    "surrogates as references": page("Odd", "[[Page 1]] [[a&#xD800;]] [[&#55296;]]").replace(b"&amp;", b"&"),
    "surrogates as escaped references": page("Odd", "[[Page 1]] [[a&#xD800;]] [[&#55296;]]"),
    "a surrogate as a reference in the title": page("Odd &#xD800;", "[[Page 1]]").replace(b"&amp;", b"&"),
    "a surrogate in a redirect": page("Odd", redirect="a&#xD800;").replace(b"&amp;", b"&"),
    "bytes in a redirect": page("Odd", redirect="a").replace(b'"a"', b'"\xff\xed\xa0\x80"'),
    "references beyond Unicode": page("Odd", "[[&#x110000;]] [[&#9999999;]] [[&#0;]]").replace(b"&amp;", b"&"),
    "bytes that are not UTF-8": page("Odd", "[[Page 1]] BYTES [[aBYTES]]").replace(b"BYTES", bytes(range(128, 256))),
    "percent signs": page("Odd", "[[%ED%A0%80]] [[%FF%00]] [[%]] [[%%%]]"),
    "a million brackets": page("Odd", "[[" * 500_000 + "]]" * 500_000),
    "a million open tags": page("Odd", "<!--<nowiki><pre><math>" * 50_000),
    "a title of a megabyte": page("o" * 1_000_000, "[[Page 1]]"),
    "a link of a megabyte": page("Odd", f"[[{'é' * 500_000}]]"),
    "a namespace of many digits": page("Odd", "[[Page 1]]", ns=10**30),
    "a page in a page": b"<page>" + page("Odd", "[[Page 1]]"),
    "an end without a page": b"</page>\n",
    "a text without a page": b"<text>[[Page 1]]</text>",
    "a text without end": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"</text>", b""),
    "a tag without end": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"<text bytes=", b"<text <text bytes="),
    "a page of ends": b"<page></text></revision></title></page>",
}


def test_poisoned_page_harms_no_other(tmp_path: Path, check: Any) -> None:
    pages = plain_pages(9)
    for number, poison in enumerate(POISON.values()):
        (tmp_path / f"{number}.xml").write_bytes(whole([*pages[:5], poison, *pages[5:], poison]))
    (tmp_path / "none.xml").write_bytes(whole(pages))
    names = ["none", *map(str, range(len(POISON)))]
    results = run(tmp_path, *(job(f"{name}.xml", "--workers", 1, "--out", name) for name in names))
    expected, wrong = rows(tmp_path / "none"), {}
    for poison, name, done in zip(["none", *POISON], names, results, strict=True):
        if flaw(done) or done.code == 2:
            wrong[poison] = flaw(done) or done.err
        elif {key: row for key, row in rows(tmp_path / name).items() if key in expected} != expected:
            wrong[poison] = "other pages are lost or changed"
    assert wrong == {}
    check(18, f"{len(POISON)} poisons (NUL, lone surrogates, bytes that are no UTF-8, …): no other page changed")


def test_line_ends_and_encodings_do_not_matter(tmp_path: Path, check: Any) -> None:
    text = whole(varied_pages(150, seed=5)).decode()
    wide = {f"UTF-16-{order}": text.encode(f"utf-16-{order}") for order in ("le", "be")}
    marks = {"le": codecs.BOM_UTF16_LE, "be": codecs.BOM_UTF16_BE}
    declared = '<?xml version="1.0" encoding="UTF-16"?>\n' + text
    variants = {
        "UTF-8": text.encode(),
        "UTF-8 with a mark": codecs.BOM_UTF8 + text.encode(),
        "CRLF": text.replace("\n", "\r\n").encode(),
        **wide,
        **{f"UTF-16-{order} with a mark": mark + wide[f"UTF-16-{order}"] for order, mark in marks.items()},
        "UTF-16 declared": declared.encode("utf-16"),
        "UTF-16 with CRLF": declared.replace("\n", "\r\n").encode("utf-16"),
        "UTF-16 in bzip2": bz2.compress(wide["UTF-16-be"]),
        "UTF-16 in gzip": gzip.compress(declared.encode("utf-16")),
    }
    jobs = []
    for name, data in variants.items():
        (tmp_path / name).write_bytes(data)
        sizes = [None, 5_001] if name in ("CRLF", "UTF-16-be", "UTF-16 in gzip") else [None]
        jobs += [job(name, "--workers", 1, "--out", f"{name} {size}", pieces=size) for size in sizes]
    for asked, done in zip(jobs, run(tmp_path, *jobs), strict=True):
        out = asked["arguments"][-1]
        assert (out, done.code, done.err) == (out, 0, "")
        assert content(tmp_path / out) == content(tmp_path / "UTF-8 None"), out
    check(18, f"CRLF, byte order marks and UTF-16, {len(variants)} ways to write a dump: the same corpus")


def test_cut_utf16_dump_is_kept_up_to_the_cut(tmp_path: Path) -> None:
    text = SOME.decode().encode("utf-16")
    for cut in (1, 2, 3):
        (tmp_path / f"{cut}.xml").write_bytes(text + "<page>🌺".encode("utf-16-le")[:-cut])
    for cut, done in zip((1, 2, 3), run(tmp_path, *(job(f"{n}.xml", "--out", n) for n in (1, 2, 3))), strict=True):
        assert (flaw(done), done.code) == (None, 3)
        assert len(rows(tmp_path / str(cut))) == 9


UNREADABLE = {
    "no title": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"<title>Odd</title>", b""),
    "an empty title": page(" ", "[[Page 1]] [[Page 2]]"),
    "a title cut short": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"</title>", b""),
    "a title in Latin-1": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"Odd", b"\xd8dd"),
    "a title of surrogates": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"Odd", b"\xed\xa0\x80"),
}


def test_unreadable_page_is_left_out_and_told(tmp_path: Path) -> None:
    pages, jobs = plain_pages(9), {}
    for kind, odd in UNREADABLE.items():
        text = whole([*pages[:5], odd, *pages[5:], odd])
        (tmp_path / f"{kind}.xml").write_bytes(text)
        (tmp_path / f"{kind}.bz2").write_bytes(bz2.compress(text))
        for name, size in ((f"{kind}.xml", 400), (f"{kind}.bz2", None)):
            jobs[name] = job(name, "--workers", 1, "--out", f"{name} out", pieces=size)
    (tmp_path / "whole").write_bytes(whole(pages))
    *results, _ = run(tmp_path, *jobs.values(), job("whole", "--out", "whole out"))
    wrong = {}
    for name, done in zip(jobs, results, strict=True):
        before = [len(HEAD + b"".join(pages[:5])), len(HEAD + b"".join(pages) + UNREADABLE[Path(name).stem])]
        told = [f"'{name}': the page at byte {byte + 2:,} " in done.err for byte in before]  # after its indentation
        if flaw(done) or done.code != 3 or not all(told):
            wrong[name] = flaw(done) or f"code {done.code}: {done.err}"
        elif rows(tmp_path / f"{name} out") != rows(tmp_path / "whole out"):
            wrong[name] = "other pages are lost or changed"
    assert wrong == {}
