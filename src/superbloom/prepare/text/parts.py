"""A piece of text → its part: files with its words as numbers, its documents, and the counts of words and pairs.

    N.words.parquet   name, count: the distinct words of the part; the number of a word is its row
    N.npz             numbers (words), begins (where sentences begin), documents (where documents begin)
    N.titles.parquet  the title of each document, or null
    N.pairs.npz       (3, pairs) int32: first word, second word, count of each pair that may become a bigram

A bigram is two adjacent words of a sentence, neither of them a punctuation mark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from superbloom.config.readers import OnBadBytes
from superbloom.corpus import Reader, Words
from superbloom.errors import InputError
from superbloom.prepare.files import how_to_convert
from superbloom.prepare.text.documents import Form, LeftOut, Piece, blank_lines, starts


class Part(NamedTuple):
    """The result of a piece: its number, its numbers of distinct words and of all words, and what was left out."""

    number: int
    distinct: int
    words: int
    left_out: LeftOut


class Reading(NamedTuple):
    """The task of a worker: read pieces as words, count them, and write the files to this folder."""

    folder: Path
    normalisation: str
    errors: OnBadBytes

    def start(self) -> Callable[[Piece], Part]:
        reader = Reader(self.normalisation)
        return lambda piece: read(piece, reader, self.errors, self.folder)


def read(piece: Piece, reader: Reader, errors: OnBadBytes, folder: Path) -> Part:
    """Write the files of a piece."""
    words, documents, titles, left_out = words_of(piece, reader, errors)
    stem = str(folder / f"{piece.number:06d}")
    counts = np.bincount(words.numbers, minlength=len(words.names))
    write_parquet(f"{stem}.words.parquet", name=pa.array(words.names, pa.string()), count=counts)
    write_parquet(f"{stem}.titles.parquet", title=pa.array(titles, pa.string()))
    # subtle: np.save would not report a full disk if only the last bytes did not fit.
    np.savez(f"{stem}.npz", numbers=words.numbers, begins=np.flatnonzero(words.begins), documents=documents)
    np.savez(f"{stem}.pairs.npz", pairs=count_pairs(words, reader))
    return Part(piece.number, len(words.names), len(words.numbers), left_out)


def words_of(piece: Piece, reader: Reader, errors: OnBadBytes) -> tuple[Words, np.ndarray, list[str | None], LeftOut]:
    """The words of a piece, the numbers of the words at which documents begin, their titles, and what was left out.

    Words before the first document belong to the last document of the piece before.
    """
    assert piece.data is not None
    try:
        if piece.form is Form.PAGES:
            piece.data.decode()
        text, places, titles, left_out = starts(piece)
        words = reader.read(text)
    except UnicodeDecodeError:
        if errors == "strict":
            raise _not_utf8(piece) from None
        data = piece.data.decode(errors="replace").encode()
        return words_of(piece._replace(data=data), reader, "strict")
    except InputError as error:
        raise InputError(f"'{piece.path}', after line {piece.line:,}: {error}") from None
    if piece.form is Form.LINES:
        documents = words.firsts[blank_lines(text, words.starts)]
        titles = [None] * len(documents)
    else:
        documents = words.at(np.array(places, dtype=np.int64))
    if not piece.continues:
        documents, titles = np.append(0, documents), [None, *titles]
    # If several documents begin at one word, all except the last are empty. A document that begins at the end may
    # continue in the next piece.
    kept = np.diff(documents, append=len(words.numbers) + 1) > 0
    return words, documents[kept], [title for title, keep in zip(titles, kept, strict=True) if keep], left_out


def _not_utf8(piece: Piece) -> InputError:
    assert piece.data is not None
    try:
        piece.data.decode()
    except UnicodeDecodeError as error:
        line = piece.line + piece.data.count(b"\n", 0, error.start)
        place = error.start - (piece.data.rfind(b"\n", 0, error.start) + 1)
        byte = piece.data[error.start]
    advice = how_to_convert(piece.data)
    if advice.startswith("convert"):
        advice += ", or continue with --errors replace"
    where = f"(byte 0x{byte:02x} at position {place:,} of the line)"
    return InputError(f"line {line:,} of '{piece.path}' is not UTF-8 {where}; {advice}")


def count_pairs(words: Words, reader: Reader) -> np.ndarray:
    """The pairs of words that may become bigrams: first, second and count, int32 (3, pairs).

    >>> reader = Reader()
    >>> words = reader.read(b"a b a b, a b. a")
    >>> words.names, count_pairs(words, reader).tolist()
    ([',', '.', 'a', 'b'], [[2, 3], [3, 2], [3, 1]])
    """
    is_word = np.array([not reader.is_punctuation(name) for name in words.names], dtype=bool)[words.numbers]
    first = np.flatnonzero(is_word[:-1] & is_word[1:] & ~words.begins[1:])
    size = max(1, len(words.names))
    keys = words.numbers[first].astype(np.int64) * size + words.numbers[first + 1]
    pairs, counts = np.unique(keys, return_counts=True)
    return np.stack([*np.divmod(pairs, size), counts]).astype(np.int32)


def write_parquet(path: str, **columns: pa.Array | np.ndarray) -> None:
    pq.write_table(pa.table(columns), path, compression="lz4", use_dictionary=False, write_statistics=False)
