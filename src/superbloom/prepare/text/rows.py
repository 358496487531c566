"""Parts and the vocabulary → the corpus: words become entries, entries get ids by frequency, documents become rows.

N.entries.npz   entries (numbers in the vocabulary as built), and where documents and sentences begin in them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from superbloom.corpus import Corpus, Segmenter, Vocab, Words, split_of
from superbloom.prepare.scratch import mapped
from superbloom.prepare.text.parts import Part
from superbloom.prepare.workers import Pool

MAX_EXAMPLES = 3  # of words left out


class Waiting(NamedTuple):
    """A part to be segmented. Its data is in its files."""

    number: int
    data: bytes | None = None


class Left(NamedTuple):
    """The number of words in a part that the word pieces do not cover, and examples."""

    words: int
    examples: list[str]


class Segmenting(NamedTuple):
    """The task of a worker: segment parts of this folder with the vocabulary that is in the same folder."""

    folder: Path

    def start(self) -> Callable[[Waiting], Left]:
        segmenter = Vocab.open(self.folder / "vocab.arrow").segmenter
        return lambda part: segment(part.number, segmenter, self.folder)


def segment(number: int, segmenter: Segmenter, folder: Path) -> Left:
    """Segment the words of a part into entries, and write these to its file."""
    stem = str(folder / f"{number:06d}")
    names = _column(f"{stem}.words.parquet", "name").to_pylist()
    with np.load(f"{stem}.npz") as part:
        begins = np.zeros(len(part["numbers"]), dtype=bool)
        begins[part["begins"]] = True
        nothing = np.empty(0, dtype=np.int64)
        words = Words(names, part["numbers"], begins, nothing, nothing)
        found = segmenter.entries(words)
        documents, sentences = found.firsts[part["documents"]], found.firsts[part["begins"]]
    np.savez(f"{stem}.entries.npz", entries=found.ids, documents=documents, sentences=sentences)
    unknown = words.numbers[found.unknown]
    return Left(len(unknown), [names[word] for word in dict.fromkeys(unknown[:1000].tolist())][:MAX_EXAMPLES])


def segment_all(
    parts: Sequence[Part], vocab: Vocab, folder: Path, pool: Pool, progress: Callable[[int], None]
) -> tuple[int, list[str]]:
    """Segment all parts; the number of words left out, and examples."""
    vocab.write(folder / "vocab.arrow")
    left, examples = 0, dict[str, None]()
    for _, found in pool.run(Segmenting(folder), (Waiting(part.number) for part in parts)):
        left += found.words
        examples |= dict.fromkeys(found.examples)
        progress(1)
    return left, list(examples)[:MAX_EXAMPLES]


def assemble(parts: Sequence[Part], vocab: Vocab, folder: Path) -> tuple[Corpus, Counter[str]]:
    """The corpus, whose ids still lie in the folder, and its counts."""
    frequency = np.zeros(len(vocab), dtype=np.int64)
    sizes = []
    for part in _entries(parts, folder):
        frequency += np.bincount(part["entries"], minlength=len(vocab))
        sizes.append(len(part["entries"]))
    names = vocab.table["name"].chunk(0)
    ranked, new_id = Vocab.from_arrays(names, frequency, vocab.kinds, vocab.normalisation)
    starts = np.cumsum([0, *sizes])
    ids = mapped(folder / "ids", np.int32, int(starts[-1]))
    row_starts, sentence_starts = [], []
    for start, stop, part in zip(starts, starts[1:], _entries(parts, folder), strict=False):
        ids[start:stop] = new_id[part["entries"]]
        row_starts.append(part["documents"] + start)
        sentence_starts.append(part["sentences"] + start)
    offsets = np.append(np.concatenate(row_starts), starts[-1]).astype(np.int64)
    titles = [_column(folder / f"{part.number:06d}.titles.parquet", "title") for part in parts]
    filled = np.diff(offsets) > 0
    keys = pa.concat_arrays(titles).fill_null("").filter(pa.array(filled))
    keys = pc.if_else(pc.equal(keys, ""), pa.array(range(1, len(keys) + 1)).cast(pa.large_string()), keys)
    kept = np.append(offsets[:-1][filled], offsets[-1])
    begins = np.unique(np.concatenate([*sentence_starts, kept[:-1]]))
    begins = begins[begins < offsets[-1]]
    sentence_offsets = np.searchsorted(begins, kept)
    positions = begins - np.repeat(kept[:-1], np.diff(sentence_offsets))
    columns = {
        "key": keys,
        "ids": _lists(kept, pa.Array.from_buffers(pa.int32(), int(kept[-1]), [None, pa.py_buffer(ids)])),
        "split": split_of(keys.to_pylist()),
        "sentences": _lists(sentence_offsets, pa.array(positions, pa.int32())),
    }
    counts = Counter(documents=len(keys), sentences=len(positions), ids=int(kept[-1]))
    return Corpus(ranked, pa.table(columns)), counts


def _entries(parts: Iterable[Part], folder: Path) -> Iterator[Any]:
    for part in parts:
        with np.load(folder / f"{part.number:06d}.entries.npz") as arrays:
            yield arrays


def _column(path: Path | str, name: str) -> pa.Array:
    table = pq.read_table(path, columns=[name], partitioning=None)  # otherwise a folder named a=b would become a column
    return table[name].cast(pa.large_string()).combine_chunks()


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
