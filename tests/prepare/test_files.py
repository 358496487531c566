"""Opening files: every packing is read by its content, every kind of damage is told in one line."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superbloom.errors import InputError
from superbloom.prepare import files
from superbloom.prepare.files import open_bytes, open_lines


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packer:
        packer.write(data)
    return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}


def write(folder: Path, data: bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("data", [b"", b"B", b"one\ntwo\n", os.urandom(1_500_000)], ids=len)
@pytest.mark.parametrize("kind", ["plain", *PACK])
def test_reads_what_was_packed(tmp_path: Path, kind: str, data: bytes) -> None:
    # The name says .txt throughout: only the content decides.
    path = write(tmp_path, data if kind == "plain" else PACK[kind](data))
    taken: list[int] = []
    with open_bytes(path, taken.append) as stream:
        assert stream.read() == data
    assert sum(taken) == path.stat().st_size


@pytest.mark.parametrize("kind", PACK)
def test_reads_several_packed_parts_in_a_row(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, PACK[kind](b"one\n") + PACK[kind](b"two\n"))
    assert list(open_lines(path)) == ["one", "two"]


def test_reads_what_pzstd_writes(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    assert list(open_lines(write(tmp_path, skippable + zstd(b"one\n")))) == ["one"]


@pytest.mark.parametrize("kind", ["plain", *PACK])
def test_reads_standard_input_and_leaves_it_open(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    data = b"one\ntwo\n"
    stdin = io.TextIOWrapper(io.BytesIO(data if kind == "plain" else PACK[kind](data)))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert list(open_lines("-")) == ["one", "two"]
    assert not stdin.closed


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("kept", [0.5, 0.999], ids=["half", "almost all"])
def test_cut_file_is_told_with_its_name_and_place(tmp_path: Path, kind: str, kept: float) -> None:
    packed = PACK[kind](os.urandom(300_000))
    path = write(tmp_path, packed[: int(len(packed) * kept)])
    size = path.stat().st_size
    told = rf"{path}' \({kind}\) is damaged or cut short near byte {size:,}"
    with open_bytes(path) as stream, pytest.raises(InputError, match=told):
        stream.read()


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_damaged_file_is_told(tmp_path: Path, kind: str) -> None:
    packed = bytearray(PACK[kind](os.urandom(300_000)))
    packed[150_000] ^= 0xFF
    with pytest.raises(InputError, match=f"{kind}. is damaged"):
        list(open_lines(write(tmp_path, bytes(packed))))


@pytest.mark.parametrize("kind", PACK)
def test_a_later_part_that_does_not_begin_as_one_is_told(tmp_path: Path, kind: str) -> None:
    """Not taken for the end of the file, with all that follows."""
    first, second = PACK[kind](b"one\n" * 1000), PACK[kind](b"two\n" * 1000)
    for damage in (b"\xff", second[:1] + b"\xff"):
        path = write(tmp_path, first + damage + second[len(damage) :])
        with pytest.raises(InputError, match=rf"'{re.escape(str(path))}' \({kind}\) is damaged or cut short near byte"):
            list(open_lines(path))


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("padding", [4, 40_000])
def test_zeros_may_follow_a_part(tmp_path: Path, kind: str, padding: int) -> None:
    zeros = b"\0" * padding
    path = write(tmp_path, PACK[kind](b"one\n") + zeros + PACK[kind](b"two\n") + zeros)
    assert list(open_lines(path)) == ["one", "two"]


@pytest.mark.parametrize(("magic", "kind"), [(b"7z\xbc\xaf\x27\x1c", "7z"), (b"PK\x03\x04", "zip")])
def test_archive_is_refused(tmp_path: Path, magic: bytes, kind: str) -> None:
    with pytest.raises(InputError, match=f"is a {kind} archive; unpack it"):
        open_bytes(write(tmp_path, magic + b"whatever"))


def test_missing_file_and_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.txt' cannot be read: No such file.*bzip2, xz or zstd"):
        open_bytes(tmp_path / "nothing.txt")
    with pytest.raises(InputError, match=f"{tmp_path}' cannot be read: Is a directory"):
        open_bytes(tmp_path)


def test_lines_lose_their_ends_and_the_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfone\r\n\r\nt\xc3\xa9o \n\xef\xbb\xbflast")
    assert list(open_lines(path)) == ["one", "", "téo ", "\ufefflast"]


@pytest.mark.parametrize("bad", [b"\xe9", b"\xed\xa0\x80", b"\xff\xfe"], ids=["latin1", "surrogate", "utf16"])
def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path, b"one\ntwo\nab" + bad + b" three\n")
    place = f"line 3 of '{path}' is not UTF-8 .byte 0x{bad[0]:02x} at position 2"
    with pytest.raises(InputError, match=place):
        list(open_lines(path))


def test_line_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 10)
    assert list(open_lines(write(tmp_path, b"123456789\n123456789\n"))) == ["123456789"] * 2
    with pytest.raises(InputError, match=r"line 2 of .* longer than 10 bytes"):
        list(open_lines(write(tmp_path, b"123456789\n1234567890\n")))


@given(data=st.binary(max_size=200), magic=st.sampled_from([b"", *files.MAGIC]))
def test_random_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes,
    magic: bytes,
) -> None:
    path = write(tmp_path_factory.getbasetemp(), magic + data)
    message = f"read {path}"
    try:
        list(open_lines(path))
    except InputError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
