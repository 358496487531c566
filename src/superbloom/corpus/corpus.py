"""The prepared data: rows of ids with a key and a split, memory-mapped (docs/formats.md).

    corpus.json       counts, provenance, how rows were split
    vocab.arrow       the names (vocab.py)
    targets.arrow     the names of a second vocabulary, if rows carry targets (S^O differs from S^I, Sec. 2.3)
    sequences.arrow   key, ids, split, and optionally targets (as long as ids), valid_from and test_from, or sentences

A row is a page with its links, a user with items, a document with words. Its split depends on its key alone,
so that it is the same in every version of the data: 10 % test (Sec. 3.1), 5 % of the rest for validation.
Rows in the order of time (prepare/interactions.py) are cut instead: of training rows what stands before valid_from is
for training, the element at valid_from is what validation asks for, and that at test_from what the test asks for.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, pairwise, repeat, zip_longest
from operator import index
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError, check_whole
from superbloom.storage import new_folder, read_arrow, read_consistently, read_folder, write_arrow

SPLITS = {"train": 0, "valid": 1, "test": 2}
TEST_SHARE = 0.10
VALID_SHARE = 0.05


class Corpus:
    """Rows of ids and the vocabulary they come from.

    >>> corpus = Corpus.from_sequences([["Copenhagen", "Denmark"], ["Denmark", "Oslo", "Denmark"]])
    >>> corpus.vocab.names(corpus.row(1)), corpus.num_ids, len(corpus)
    (['Denmark', 'Oslo', 'Denmark'], 3, 2)
    """

    def __init__(
        self, vocab: Vocab, sequences: pa.Table, target_vocab: Vocab | None = None, info: dict[str, Any] | None = None
    ) -> None:
        self.vocab = vocab
        self.target_vocab = target_vocab
        self.sequences = sequences
        self.info = info or {}
        self.backend: str | None = None  # of the table it was made from: what a user likes to get back
        lists = sequences["ids"].chunk(0)
        self.offsets: np.ndarray = lists.offsets.to_numpy()
        self.ids: np.ndarray = lists.values.to_numpy()
        self.splits: np.ndarray = sequences["split"].chunk(0).to_numpy()
        # Of rows that are cut, (rows,) positions; training ends at the first.
        self.cuts: dict[str, np.ndarray] = {
            split: sequences[f"{split}_from"].chunk(0).to_numpy()
            for split in ("valid", "test")
            if f"{split}_from" in sequences.column_names
        }
        self.ends: np.ndarray = self.offsets[:-1] + self.cuts["valid"] if self.cuts else self.offsets[1:]
        # Of text: where in each row its sentences begin, as offsets and positions.
        self.sentences: tuple[np.ndarray, np.ndarray] | None = None
        if "sentences" in sequences.column_names:
            begins = sequences["sentences"].chunk(0)
            self.sentences = begins.offsets.to_numpy(), begins.values.to_numpy()
        # What is predicted: the ids themselves, unless rows carry targets of their own.
        self.targets: np.ndarray = self.ids if target_vocab is None else sequences["targets"].chunk(0).values.to_numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the tables; what is computed from them is made again."""
        parts = (self.vocab, self.sequences, self.target_vocab, self.info)
        return type(self), parts, {"backend": self.backend}

    @classmethod
    def from_sequences(
        cls,
        rows: Iterable[Sequence[str]],
        keys: Iterable[str] | None = None,
        *,
        targets: Iterable[Sequence[str]] | None = None,
        min_count: int = 1,
        max_names: int | None = None,
        source: str = "sequences",
    ) -> Self:
        """Number the names of rows; names rarer than min_count or beyond the max_names most frequent are left out.

        keys name the rows (their number otherwise); targets gives for each row what stands at each of its
        positions in a second vocabulary.
        """
        keyed = zip(count(), rows, strict=False) if keys is None else _one_each(keys, rows, "keys", "rows")
        return cls.from_keyed(keyed, targets=targets, min_count=min_count, max_names=max_names, source=source)

    @classmethod
    def from_keyed(
        cls,
        rows: Iterable[tuple[str | int, Sequence[str]]],
        *,
        targets: Iterable[Sequence[str]] | None = None,
        min_count: int = 1,
        max_names: int | None = None,
        source: str = "sequences",
    ) -> Self:
        """The same from (key, names) pairs, read once, so that they may come straight from a file."""
        check_cuts(min_count, max_names)
        inputs, outputs, keys, lengths = _Numbering(), _Numbering(), [], array("q")
        pairs = zip(rows, repeat(()), strict=False) if targets is None else _one_each(rows, targets, "rows", "targets")
        for number, (pair, target) in enumerate(pairs):
            try:
                key, row = pair
            except (TypeError, ValueError):
                raise InputError(f"row {number} is {pair!r:.80}; give pairs of a key and a list of names") from None
            keys.append(_text(key, number))
            lengths.append(inputs.add(row, number))
            if targets is not None and (found := outputs.add(target, number)) != lengths[-1]:
                raise InputError(f"row {number} has {lengths[-1]} names but {found} targets; give one each")
        vocab, ids = inputs.vocab(min_count, max_names)
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        kept = ids >= 0
        splits = split_of(keys)
        columns: dict[str, Any] = {
            "key": pa.array(keys, type=pa.large_string()),
            "ids": _lists(ids[kept], row_of[kept], len(lengths)),
            "split": splits,
        }
        target_vocab = None
        if targets is not None:
            target_vocab, target_ids = outputs.vocab(1, None, kept)
            columns["targets"] = _lists(target_ids[kept], row_of[kept], len(lengths))
        filled = np.bincount(row_of[kept], minlength=len(lengths)) > 0
        sequences = pa.table(columns).filter(pa.array(filled)).combine_chunks()
        return cls(vocab, sequences, target_vocab, {"source": source, "min_count": min_count})

    @classmethod
    def open(cls, folder: str | Path, verify: bool = True) -> Self:
        """Memory-map a corpus folder; a damaged or foreign file is refused by name."""
        return read_consistently(folder, lambda: cls._open(Path(folder), verify))

    @classmethod
    def _open(cls, folder: Path, verify: bool) -> Self:
        manifest = read_folder(folder, "corpus", verify)
        has_targets = "targets.arrow" in manifest["files"]
        lists = pa.large_list(pa.int32())
        columns = {"key": pa.large_string(), "ids": lists, "split": pa.int8()}
        cuts = {"valid_from": pa.int32(), "test_from": pa.int32()}
        columns |= cuts | {"sentences": lists} | ({"targets": lists} if has_targets else {})
        sequences = read_arrow(folder / "sequences.arrow", columns, optional=[*cuts, "sentences"])
        if len(cuts.keys() & set(sequences.column_names)) == 1:
            raise InputError(f"{folder / 'sequences.arrow'} has one of valid_from and test_from; give both or none")
        target_vocab = Vocab.open(folder / "targets.arrow") if has_targets else None
        corpus = cls(Vocab.open(folder / "vocab.arrow"), sequences, target_vocab, manifest["info"])
        corpus._check(folder / "sequences.arrow")
        return corpus

    def save(self, folder: str | Path) -> None:
        """Write the corpus folder, whole or not at all."""
        content = {"counts": self.counts(), "info": self.info, "split": self.info.get("split", _SPLIT_RULE)}
        with new_folder(folder, "corpus", content) as temporary:
            self.vocab.write(temporary / "vocab.arrow")
            if self.target_vocab is not None:
                self.target_vocab.write(temporary / "targets.arrow")
            write_arrow(self.sequences, temporary / "sequences.arrow")

    def under(self, vocab: Vocab) -> Self:
        """The same rows numbered by another vocabulary, which has to have all of their names.

        >>> corpus = Corpus.from_sequences([["b", "a", "b"], ["a", "b"]])
        >>> corpus.under(Vocab.from_counts({"a": 9, "c": 8, "b": 7})).row(0).tolist()
        [2, 0, 2]
        """
        ours, theirs = self.vocab.table["name"], vocab.table["name"]
        if self.vocab is vocab or ours.equals(theirs):
            return self
        numbers = pc.index_in(ours, value_set=theirs.combine_chunks())
        if missing := numbers.null_count:
            example = ours.filter(pc.is_null(numbers))[0].as_py()
            raise InputError(
                f"{missing:,} of the corpus's {self.num_ids:,} names are not among the {len(vocab):,} of the model, "
                f"{example!r} for one; extend the model by them, or train on this corpus"
            )
        ids = pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(numbers.to_numpy()[self.ids]))
        column = self.sequences.column_names.index("ids")
        corpus = type(self)(vocab, self.sequences.set_column(column, "ids", ids), self.target_vocab, self.info)
        corpus.backend = self.backend
        return corpus

    @property
    def is_ordered(self) -> bool:
        """Whether rows are in the order of time, and cut into training, validation and test."""
        return bool(self.cuts)

    @property
    def num_ids(self) -> int:
        return len(self.vocab)

    def __len__(self) -> int:
        return len(self.splits)

    def __repr__(self) -> str:
        return f"Corpus({len(self):,} rows, {self.num_ids:,} names)"

    def row(self, number: int) -> np.ndarray:
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def rows(self, split: str) -> np.ndarray:
        """The rows of a split that can be used: something to hold out and something to see."""
        if self.is_ordered and split in self.cuts:
            here = self.cuts[split]
            beyond = self.cuts["test"] if split == "valid" else np.diff(self.offsets)
            return np.flatnonzero((here >= 1) & (here < beyond))
        return np.flatnonzero(self._is_in(split) & (self.ends - self.offsets[:-1] >= 2))

    def id_counts(self, split: str, inputs: bool = False) -> np.ndarray:
        """How often each id is a target in a split, or with inputs, is there to be read; (ids of that vocabulary,)."""
        chosen = np.repeat(self._is_in(split), np.diff(self.offsets))
        if self.is_ordered and split == "train":
            chosen &= np.arange(len(self.ids)) < np.repeat(self.ends, np.diff(self.offsets))
        vocab = self.vocab if inputs or self.target_vocab is None else self.target_vocab
        return np.bincount((self.ids if inputs else self.targets)[chosen], minlength=len(vocab))

    def _is_in(self, split: str) -> np.ndarray:
        if split not in SPLITS:
            raise InputError(f"split {split!r} given; {', '.join(SPLITS)} are allowed")
        return np.equal(self.splits, SPLITS[split])

    def counts(self) -> dict[str, int]:
        counts = {"names": self.num_ids, "rows": len(self), "ids": len(self.ids)}
        if self.is_ordered:
            return counts | {f"{split} rows": len(self.rows(split)) for split in SPLITS}
        return counts | {f"{split} rows": int((self.splits == code).sum()) for split, code in SPLITS.items()}

    @cached_property
    def sentence_starts(self) -> np.ndarray:
        """Where in all ids the sentences begin, ascending."""
        assert self.sentences is not None
        offsets, positions = self.sentences
        return positions + np.repeat(self.offsets[:-1], np.diff(offsets))

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Of the names, and of the rows with their splits; the same in memory and on disk."""
        names, rows = hashlib.sha256(), hashlib.sha256()
        for vocab in (self.vocab, self.target_vocab or self.vocab):
            column = vocab.table["name"].chunk(0)
            names.update(pc.binary_length(column).to_numpy().data)
            names.update(column.buffers()[2] or b"")
            if vocab.is_text:
                names.update(np.ascontiguousarray(vocab.kinds).data)
        for part in (self.offsets, self.ids, self.targets, self.splits, *self.cuts.values(), *(self.sentences or ())):
            rows.update(np.ascontiguousarray(part).data)
        return {"names sha256": names.hexdigest(), "rows sha256": rows.hexdigest()}

    def fingerprint(self) -> str:
        """One checksum of both."""
        return hashlib.sha256("".join(self.checksums.values()).encode()).hexdigest()

    def _check(self, path: Path) -> None:
        size = len(self.target_vocab or self.vocab)
        for ids, limit in ((self.ids, self.num_ids), (self.targets, size)):
            if len(ids) and (ids.min() < 0 or ids.max() >= limit):
                raise InputError(f"{path}: ids from {ids.min()} to {ids.max()}; 0 to {limit - 1} have names")
        if self.splits.min() < 0 or self.splits.max() >= len(SPLITS):
            raise InputError(f"{path}: split codes are {SPLITS}; found {self.splits.min()} to {self.splits.max()}")
        if self.is_ordered:
            positions = [np.zeros(len(self), dtype=np.int64), *self.cuts.values(), np.diff(self.offsets)]
            if any((after < before).any() for before, after in pairwise(positions)):
                raise InputError(f"{path}: 0 <= valid_from <= test_from <= length has to hold in every row")
        self._check_sentences(path)
        for name in {"ids", "targets"} & set(self.sequences.column_names):
            lists = self.sequences[name].chunk(0)
            offsets = lists.offsets.to_numpy()
            if offsets[0] != 0 or offsets[-1] != len(lists.values) or not np.array_equal(offsets, self.offsets):
                raise InputError(f"{path}: rows must follow one another, with as many targets as ids; write it again")

    def _check_sentences(self, path: Path) -> None:
        """Each row's positions begin with 0, increase, and end within the row."""
        if self.sentences is None:
            return
        offsets, positions = self.sentences
        lengths, sizes = np.diff(offsets), np.diff(self.offsets)
        sound = offsets[0] == 0 and offsets[-1] == len(positions) and np.array_equal(lengths > 0, sizes > 0)
        if sound:
            firsts, lasts = offsets[:-1][lengths > 0], offsets[1:][lengths > 0] - 1
            rising = np.ones(len(positions), dtype=bool)
            rising[1:] = positions[1:] > positions[:-1]
            rising[firsts] = positions[firsts] == 0
            sound = rising.all() and (positions[lasts] < sizes[lengths > 0]).all()
        if not sound:
            raise InputError(f"{path}: sentences of a row begin at 0, at rising places within it; write it again")


_SPLIT_RULE = (
    f"x = first 8 hex digits of md5(key) / 16^8; test: x < {TEST_SHARE}; "
    f"valid: x >= {1 - (1 - TEST_SHARE) * VALID_SHARE:.3f}; else train"
)


def split_of(keys: Iterable[str]) -> np.ndarray:
    """The split of each row by its key alone; md5 because every engine that may write a corpus has it.

    >>> split_of(["Denmark", "Oslo"]).tolist()
    [0, 1]
    """
    digests = (hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()[:8] for key in keys)
    try:
        x = np.fromiter((int(digest, 16) for digest in digests), dtype=np.float64) / 16**8
    except UnicodeEncodeError as error:
        raise InputError(f"key {error.object!r} holds a lone surrogate; keys must be Unicode text") from None
    splits = np.full(len(x), SPLITS["train"], dtype=np.int8)
    splits[x < TEST_SHARE] = SPLITS["test"]
    splits[x >= 1 - (1 - TEST_SHARE) * VALID_SHARE] = SPLITS["valid"]
    return splits


def check_cuts(min_count: int, max_names: int | None) -> None:
    check_whole(min_count=min_count, max_names=1 if max_names is None else max_names)


def check_enough(kept: int, names: int, min_count: int, max_names: int | None, most: int) -> None:
    """Refuse a vocabulary with which nothing can be learnt."""
    if names < 2:
        raise InputError(f"the rows hold {names} distinct names; at least 2 are needed")
    if kept < 2:
        raise InputError(
            f"{kept} of {names:,} names are left by min_count={min_count}, max_names={max_names}; "
            f"at least 2 are needed (the most frequent name occurs {most:,} times)"
        )


class _Numbering:
    """Provisional numbers of names in order of appearance; only four bytes are kept of each occurrence."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.occurrences = array("i")

    def add(self, row: Sequence[str], number: int) -> int:
        """Number the names of a row and say how many there are."""
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise InputError(f"row {number} is {row!r:.80} of type {type(row).__name__}; give a list of names")
        numbers, before = self.numbers, len(self.occurrences)
        for name in row:
            if type(name) is not str:
                name = _text(name, number)
            self.occurrences.append(numbers.setdefault(name, len(numbers)))
        return len(self.occurrences) - before

    def vocab(
        self, min_count: int, max_names: int | None, counted: np.ndarray | slice = slice(None)
    ) -> tuple[Vocab, np.ndarray]:
        """The vocabulary and the id of every occurrence, −1 where the name was left out."""
        occurrences = np.frombuffer(self.occurrences, dtype=np.int32) if self.occurrences else np.empty(0, np.int32)
        check_enough(len(self.numbers), len(self.numbers), 1, None, 1)
        vocab, ids = Vocab.from_arrays(
            list(self.numbers), np.bincount(occurrences[counted], minlength=len(self.numbers))
        )
        kept = int((vocab.counts >= min_count).sum())
        kept = kept if max_names is None else min(kept, max_names)
        check_enough(kept, len(vocab), min_count, max_names, vocab.counts[0])
        if kept < len(vocab):
            names = vocab.table["name"].chunk(0).slice(0, kept).to_pylist()
            vocab, _ = Vocab.from_arrays(names, vocab.counts[:kept])
        ids = np.where(ids < kept, ids, np.int32(-1))
        return vocab, ids[occurrences]


def _text(value: Any, number: int) -> str:
    """A name or key as text; whole numbers are taken as names, other things are not."""
    if isinstance(value, str):
        return str(value)
    try:
        if not isinstance(value, bool):
            return str(index(value))
    except TypeError:
        pass
    raise InputError(f"row {number} holds {value!r:.80} of type {type(value).__name__}; give text or whole numbers")


def _one_each(first: Iterable[Any], second: Iterable[Any], *names: str) -> Iterator[tuple[Any, Any]]:
    """zip, but refusing what is unequally long, since what is beyond the shorter would silently be lost."""
    missing = object()
    for number, pair in enumerate(zip_longest(first, second, fillvalue=missing)):
        if pair[0] is missing or pair[1] is missing:
            short, long = names if pair[0] is missing else reversed(names)
            raise InputError(f"{number:,} {short} but more {long} given; give equally many")
        yield pair


def _lists(values: np.ndarray, row_of: np.ndarray, num_rows: int) -> pa.LargeListArray:
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=num_rows))]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values, type=pa.int32()))
