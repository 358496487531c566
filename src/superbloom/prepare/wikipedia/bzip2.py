"""Unpack any range of a bzip2 file by itself, so that every core can take one.

A bzip2 file is a sequence of blocks of at most 900 kB. Each has its own checksum, and begins at any bit with the same
48 bits. Blocks are found by these bits, wrapped as streams of one block each, and unpacked. Where the streams of the
file begin and end does not matter, so that single-stream and multistream files are the same.
"""

from __future__ import annotations

import bz2
import io
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import numpy as np

from superbloom.errors import InputError

BLOCK = 0x314159265359
END = 0x177245385090
# A block holds at most 900,000 bytes and grows by less than a hundredth (bzip2's manual, "compressed files").
MAX_BLOCK_BYTES = 2**20
HEADER = re.compile(rb"BZh[1-9]")

try:
    from rapidgzip import IndexedBzip2File
except ImportError:  # an extra; without it, unpacking takes a third longer
    IndexedBzip2File = None


def unpack_range(file: BinaryIO, start: int, stop: int, size: int) -> Iterator[bytes]:
    """Unpack the blocks that begin in bytes start to stop of a bzip2 file; yields at most `size` bytes at a time.

    After all blocks before a damaged one, InputError names it.
    """
    file.seek(start)
    asked = stop - start + MAX_BLOCK_BYTES
    packed = file.read(asked)
    marks = find_marks(packed)
    blocks = [bit for bit, mark in marks if mark == BLOCK and bit < 8 * (stop - start)]
    lost = _lost_blocks(packed, marks, 8 * (stop - start), len(packed) < asked)
    mine = sorted([*blocks, *lost])
    edges = sorted([*(bit for bit, _ in marks), *lost, 8 * len(packed)])
    ends = [edges[bisect_right(edges, begin)] for begin in mine]
    done = 0
    if IndexedBzip2File is not None:
        try:
            for data in _unpack(b"".join(map(_stream, [packed] * len(mine), mine, ends)), size):
                yield data
                done += len(data)
            return
        except (OSError, EOFError, RuntimeError, ValueError):
            pass
    for begin in mine:
        following = bisect_right(edges, begin)
        for end in edges[following : following + 2]:  # the second, in case the first mark is one by chance
            try:
                data = bz2.decompress(_stream(packed, begin, end))
                break
            except (OSError, EOFError, ValueError) as error:
                reason = error
        else:
            with suppress(OSError, ValueError):  # the block may be whole, and only the end of its stream be missing
                yield _unpack_open(_stream(packed, begin, end)[:-10])[done:]
            raise InputError(f"bzip2 block at byte {start + begin // 8:,}: {reason}")
        fresh, done = data[done:], max(0, done - len(data))
        for at in range(0, len(fresh), size):
            yield fresh[at : at + size]


def find_marks(packed: bytes) -> list[tuple[int, int]]:
    """The bit positions of all marks: the begin of a block or the end of a stream, in order.

    >>> find_marks((BLOCK << 101).to_bytes(20, "big")) == [(11, BLOCK)]
    True
    """
    # At any shift a mark fills its bytes 1 to 3 alone, and one of the two pairs of these begins at an even byte.
    places: dict[int, list[tuple[int, int]]] = {}
    for mark in (BLOCK, END):
        for shift in range(8):
            shifted = ((mark << 8) >> shift).to_bytes(7, "big")
            for lead in (1, 2):
                pair = int.from_bytes(shifted[lead : lead + 2], "little")
                places.setdefault(pair, []).append((shift - 8 * lead, mark))
    wanted = np.zeros(2**16, dtype=bool)
    wanted[list(places)] = True
    pairs = np.frombuffer(packed, "<u2", len(packed) // 2)
    found = []
    for at in np.flatnonzero(wanted[pairs]).tolist():
        for place, mark in places[int(pairs[at])]:
            if (bit := 16 * at + place) >= 0 and _bits(packed, bit, 48) == mark:
                found.append((bit, mark))
    return sorted(found)


def _lost_blocks(packed: bytes, marks: list[tuple[int, int]], limit: int, is_last: bool) -> list[int]:
    """The bit positions after the end of a stream where a block should begin, but does not.

    Otherwise a decoder would take what follows for garbage after the end, without an error.
    """
    known = {bit for bit, _ in marks}
    lost = []
    for bit, mark in marks:
        if mark == END and bit < limit:
            after = -(-(bit + 80) // 8)  # mark and checksum are 48 + 32 bits; a stream ends at the end of a byte
            if HEADER.match(packed, after):
                if 8 * after + 32 not in known:
                    lost.append(8 * after + 32)
            elif not is_last or any(other > bit for other in known):
                lost.append(8 * after)
    return lost


def _stream(packed: bytes, begin: int, end: int) -> bytes:
    """The block between two bits as a stream of its own."""
    checksum = _bits(packed, begin + 48, 32)
    whole, rest = divmod(end - begin, 8)
    first, shift = divmod(begin, 8)
    body = packed[first : first + whole]
    if shift and whole:
        raw = np.frombuffer(packed, np.uint8, whole + 1, first)
        body = ((raw[:-1] << shift) | (raw[1:] >> (8 - shift))).tobytes()
    tail = _bits(packed, end - rest, rest) << 80 | END << 32 | checksum
    return b"BZh9" + body + (tail << -rest % 8).to_bytes(10 + (rest > 0), "big")


def _unpack(streams: bytes, size: int) -> Iterator[bytes]:
    with IndexedBzip2File(io.BytesIO(streams), parallelization=1) as file:
        while data := file.read(size):
            yield data


def _unpack_open(stream: bytes) -> bytes:
    """Unpack a stream whose end is missing."""
    unpacker = bz2.BZ2Decompressor()
    data = [unpacker.decompress(stream)]
    while data[-1]:
        data.append(unpacker.decompress(b""))
    return b"".join(data)


def _bits(packed: bytes, begin: int, count: int) -> int:
    first, skipped = divmod(begin, 8)
    size = (skipped + count + 7) // 8
    taken = int.from_bytes(packed[first : first + size].ljust(size, b"\0"), "big")
    return (taken >> (8 * size - skipped - count)) & ((1 << count) - 1)
