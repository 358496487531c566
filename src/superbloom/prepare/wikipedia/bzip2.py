"""Unpack any stretch of a bzip2 file by itself, so that every core can take one.

A bzip2 file is a row of blocks of at most 900 kB, each with its own checksum, that begin at any bit with the same
48 bits. Blocks found by those bits are wrapped as streams of one block each and unpacked; where the file's own streams
begin and end does not matter, so single-stream and multistream files are the same.
"""

from __future__ import annotations

import bz2
import io
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from superbloom.errors import InputError

BLOCK = 0x314159265359
END = 0x177245385090
# A block packs at most 900,000 bytes and grows by less than a hundredth (bzip2's manual, "compressed files").
MAX_BLOCK_BYTES = 2**20
HEADER = re.compile(rb"BZh[1-9]")

try:
    from rapidgzip import IndexedBzip2File
except ImportError:  # an extra: without it blocks are unpacked a third more slowly
    IndexedBzip2File = None


def unpack_range(file: BinaryIO, start: int, stop: int, size: int) -> Iterator[bytes]:
    """Yield what the blocks hold that begin in bytes start to stop of a bzip2 file, up to `size` bytes at a time.

    InputError names the first damaged block, after all before it.
    """
    file.seek(start)
    packed = file.read(stop - start + MAX_BLOCK_BYTES)
    begins = find_marks(packed, BLOCK)
    mine = [begin for begin in begins if begin < 8 * (stop - start)]
    ends = [_end_of_stream(packed, after) or after for after in begins[1:]]
    last = begins[-1] // 8 if begins else 0
    ends += [8 * last + bit for bit in find_marks(packed[last:], END)[:1]] or [8 * len(packed)]
    done = 0
    try:
        for data in _unpack(b"".join(map(_stream, [packed] * len(mine), mine, ends)), size):
            yield data
            done += len(data)
        return
    except (OSError, EOFError, RuntimeError, ValueError):
        pass
    for number, begin in enumerate(mine):
        for end in ends[number : number + 2]:  # the second, should the first have come about by chance
            try:
                data = bz2.decompress(_stream(packed, begin, end))
                break
            except (OSError, EOFError, ValueError) as error:
                reason = error
        else:
            raise InputError(f"bzip2 block at byte {start + begin // 8:,}: {reason}")
        fresh, done = data[done:], max(0, done - len(data))
        for at in range(0, len(fresh), size):
            yield fresh[at : at + size]


def find_marks(packed: bytes, mark: int) -> list[int]:
    """The bits at which a 48-bit mark begins.

    >>> find_marks((BLOCK << 101).to_bytes(20, "big"), BLOCK)
    [11]
    """
    # Whatever the shift, four bytes are filled by the mark alone: look for those eight words, at any byte.
    found = []
    for shift in range(8):
        inner = np.uint32(int.from_bytes(((mark << 8) >> shift).to_bytes(7, "big")[1:5], "little"))
        for lead in range(min(4, len(packed) // 4)):
            hits = np.frombuffer(packed, "<u4", (len(packed) - lead) // 4, lead) == inner
            if hits.any():
                bits = 8 * (4 * np.flatnonzero(hits) + lead - 1) + shift
                found += [bit for bit in bits.tolist() if bit >= 0 and _bits(packed, bit, 48) == mark]
    return sorted(found)


def _end_of_stream(packed: bytes, after: int) -> int | None:
    """The bit at which a stream ends, if the block at `after` is the first of the next one."""
    header = after // 8 - 4
    if after % 8 == 0 and header >= 0 and HEADER.match(packed, header):
        for begin in range(8 * header - 80, 8 * header - 88, -1):
            if begin >= 0 and _bits(packed, begin, 48) == END:
                return begin
    return None


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
    opened = IndexedBzip2File(io.BytesIO(streams), parallelization=1) if IndexedBzip2File else None
    with opened or bz2.BZ2File(io.BytesIO(streams)) as file:
        while data := file.read(size):
            yield data


def _bits(packed: bytes, begin: int, count: int) -> int:
    first, skipped = divmod(begin, 8)
    size = (skipped + count + 7) // 8
    taken = int.from_bytes(packed[first : first + size].ljust(size, b"\0"), "big")
    return (taken >> (8 * size - skipped - count)) & ((1 << count) - 1)
