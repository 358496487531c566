"""The prepared data: rows of ids with a key and a split, memory-mapped (docs/formats.md).

    corpus.json       counts, provenance, how rows were split, how often they repeat a name
    vocab.arrow       the names (vocab.py)
    targets.arrow     the names of a second vocabulary, if rows carry targets (S^O differs from S^I, Sec. 2.3)
    sequences.arrow   key, ids, split, and optionally targets (one per id), valid_from and test_from, or sentences

A row is a page with its links, a user with items, or a document with words. splits.py assigns rows to splits.
Rows in the order of time (prepare/interactions/) are cut instead. A training row ends before valid_from; validation
predicts the element at valid_from, and the test predicts the element at test_from. Where info["asks"] is "every", they
predict all elements from valid_from to before test_from, and all from test_from on.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.corpus.checks import check_asks, check_sequences, checked_share
from superbloom.corpus.numbering import Numbering, as_text, check_name_limits, zip_equal
from superbloom.corpus.repeats import share_of_repeats
from superbloom.corpus.splits import SPLIT_RULE, SPLITS, split_of
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.storage import MANIFESTS, new_folder, read_arrow, read_consistently, read_folder, write_arrow


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
        self.backend: str | None = None  # library of the table that the corpus came from
        lists = sequences["ids"].chunk(0)
        self.offsets: np.ndarray = lists.offsets.to_numpy()
        self.ids: np.ndarray = lists.values.to_numpy()
        self.splits: np.ndarray = sequences["split"].chunk(0).to_numpy()
        # (rows,) positions at which rows in the order of time are cut; training ends at "valid".
        self.cuts: dict[str, np.ndarray] = {
            split: sequences[f"{split}_from"].chunk(0).to_numpy()
            for split in ("valid", "test")
            if f"{split}_from" in sequences.column_names
        }
        self.ends: np.ndarray = self.offsets[:-1] + self.cuts["valid"] if self.cuts else self.offsets[1:]
        # Text only: where the sentences of each row begin, as offsets and positions.
        self.sentences: tuple[np.ndarray, np.ndarray] | None = None
        if "sentences" in sequences.column_names:
            begins = sequences["sentences"].chunk(0)
            self.sentences = begins.offsets.to_numpy(), begins.values.to_numpy()
        # What a model predicts: the ids themselves, unless rows carry targets.
        self.targets: np.ndarray = self.ids if target_vocab is None else sequences["targets"].chunk(0).values.to_numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the tables only; the rest is computed from them again."""
        parts = (self.vocab, self.sequences, self.target_vocab, self.info)
        return type(self), parts, {"backend": self.backend}

    @classmethod
    def from_sequences(
        cls,
        rows: Iterable[Sequence[str]],
        keys: Iterable[str] | None = None,
        *,
        valid: Iterable[Sequence[str]] | None = None,
        test: Iterable[Sequence[str]] | None = None,
        targets: Iterable[Sequence[str]] | None = None,
        min_count: int = 1,
        max_names: int | None = None,
        source: str = "sequences",
    ) -> Self:
        """Number the names of rows.

        keys: one per row; the default is the row's number. valid, test: rows to hold out whole; their keys are `valid`
        or `test` and their number. Without both, keys decide what is held out (splits.py). targets: per row, one name
        of a second vocabulary for each of its names. Names that occur less than min_count times, or are not among the
        max_names most frequent, are left out.
        """
        keyed = zip(count(), rows, strict=False) if keys is None else zip_equal(keys, rows, "keys", "rows")
        held_out: dict[str, Any] = {
            name: _numbered(name, given) for name, given in (("valid", valid), ("test", test)) if given is not None
        }
        limits: dict[str, Any] = {"min_count": min_count, "max_names": max_names}
        return cls.from_keyed(keyed, **held_out, targets=targets, **limits, source=source)

    @classmethod
    def from_keyed(
        cls,
        rows: Iterable[tuple[str | int, Sequence[str]]],
        *,
        valid: Iterable[tuple[str | int, Sequence[str]]] | None = None,
        test: Iterable[tuple[str | int, Sequence[str]]] | None = None,
        targets: Iterable[Sequence[str]] | None = None,
        min_count: int = 1,
        max_names: int | None = None,
        source: str = "sequences",
    ) -> Self:
        """Number the names of (key, names) pairs. They are read once, so they may come straight from a file.

        valid, test: rows to hold out whole, in the same form. Without valid, keys decide which of the other rows are
        held out for validation; without test, none is held out for the test.
        """
        check_name_limits(min_count, max_names)
        inputs, outputs, keys, lengths = Numbering(), Numbering(), [], array("q")
        is_split, codes = valid is not None or test is not None, array("b")
        if is_split:
            if targets is not None:
                raise InputError("targets with valid or test given; give all rows at once, so that keys split them")
            parts = {"train": rows, "valid": valid or (), "test": test or ()}
            rows = (pair for name, part in parts.items() for pair in _coded(part, SPLITS[name], codes))
        pairs = zip(rows, repeat(()), strict=False) if targets is None else zip_equal(rows, targets, "rows", "targets")
        for number, (pair, target) in enumerate(pairs):
            try:
                key, row = pair
            except (TypeError, ValueError):
                raise InputError(f"row {number} is {pair!r:.80}; give pairs of a key and a list of names") from None
            keys.append(as_text(key, number))
            lengths.append(inputs.add(row, number))
            if targets is not None and (found := outputs.add(target, number)) != lengths[-1]:
                raise InputError(f"row {number} has {lengths[-1]} names but {found} targets; give one each")
        vocab, ids = inputs.vocab(min_count, max_names)
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        kept = ids >= 0
        splits = split_of(keys)  # before the column of keys: it reports which key holds a lone surrogate
        if is_split:
            given = np.array(codes, np.int8)
            by_key = (given == SPLITS["train"]) & (splits == SPLITS["valid"]) & (valid is None)
            splits = np.where(by_key, splits, given)
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
        info: dict[str, Any] = {"source": source, "min_count": min_count}
        if is_split:
            which = "the rows given for validation" if valid is not None else "rows whose key's md5 says validation"
            info["split"] = f"validation: {which}; test: {'nothing' if test is None else 'the rows given for the test'}"
        left_out = {"names": inputs.num_names - len(vocab), "ids": int((~kept).sum()), "rows": int((~filled).sum())}
        if any(left_out.values()):
            info["left out"] = left_out
        return cls(vocab, sequences, target_vocab, info)

    @classmethod
    def open(cls, folder: str | Path, verify: bool = True) -> Self:
        """Memory-map a corpus folder; a damaged or foreign file raises InputError with its name."""
        return read_consistently(folder, lambda: cls._open(Path(folder), verify))

    @classmethod
    def _open(cls, folder: Path, verify: bool) -> Self:
        manifest = read_folder(folder, "corpus", verify)
        has_targets = "targets.arrow" in manifest["files"]
        lists = pa.large_list(pa.int32())
        columns = {"key": pa.large_string(), "ids": lists, "split": pa.int8()}
        optional = {"valid_from": pa.int32(), "test_from": pa.int32(), "sentences": lists}
        columns |= optional | ({"targets": lists} if has_targets else {})
        sequences = read_arrow(folder / "sequences.arrow", columns, optional=[*optional])
        target_vocab = Vocab.open(folder / "targets.arrow") if has_targets else None
        vocab = Vocab.open(folder / "vocab.arrow")
        check_sequences(folder / "sequences.arrow", sequences, len(vocab), len(target_vocab or vocab))
        check_asks(folder / MANIFESTS["corpus"], manifest["info"])
        corpus = cls(vocab, sequences, target_vocab, manifest["info"])
        if "repeats" in manifest:  # without it, in folders of earlier releases, it is measured when it is asked for
            corpus.repeats = checked_share(folder / MANIFESTS["corpus"], "repeats", manifest["repeats"])
        return corpus

    def save(self, folder: str | Path, *, overwrite: bool = True) -> None:
        """Write the corpus folder: all of it, or nothing if writing fails.

        A corpus that is there is replaced; overwrite=False refuses that. Anything else is always refused.
        """
        facts = {"split": self.info.get("split", SPLIT_RULE), "repeats": self.repeats}
        content = {"counts": self.counts(), "info": self.info, **facts}
        with new_folder(folder, "corpus", content, overwrite) as temporary:
            self.vocab.write(temporary / "vocab.arrow")
            if self.target_vocab is not None:
                self.target_vocab.write(temporary / "targets.arrow")
            write_arrow(self.sequences, temporary / "sequences.arrow")

    def under(self, vocab: Vocab, *, drop_unknown: bool = False) -> Self:
        """Return the same rows with the ids of another vocabulary, which must have all of their names.

        drop_unknown: leave names that it does not have out of the rows, instead of refusing them. Not for text.

        >>> corpus = Corpus.from_sequences([["b", "a", "b"], ["a", "b"]])
        >>> corpus.under(Vocab.from_counts({"a": 9, "c": 8, "b": 7})).row(0).tolist()
        [2, 0, 2]
        >>> corpus.under(Vocab.from_counts({"b": 1}), drop_unknown=True).row(0).tolist()
        [0, 0]
        """
        if self.vocab is vocab or self.vocab.table["name"].equals(vocab.table["name"]):
            return self
        numbers = self.vocab.numbers_in(vocab)
        missing = int((numbers < 0).sum())
        if missing and (self.vocab.is_text or not drop_unknown):
            raise self.unknown_names(vocab, numbers)
        ids = numbers[self.ids]
        sequences, offsets = self.sequences, self.offsets
        if missing:
            before = np.concatenate([[0], np.cumsum(ids >= 0)])  # known elements before each element
            for split, cut in self.cuts.items():
                known = before[self.offsets[:-1] + cut] - before[self.offsets[:-1]]
                sequences = _replaced(sequences, f"{split}_from", pa.array(known, pa.int32()))
            if self.target_vocab is not None:
                targets = pa.array(self.targets[ids >= 0])
                sequences = _replaced(sequences, "targets", pa.LargeListArray.from_arrays(before[offsets], targets))
            ids, offsets = ids[ids >= 0], before[offsets]
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
        corpus = type(self)(vocab, _replaced(sequences, "ids", lists), self.target_vocab, self.info)
        corpus.backend = self.backend
        return corpus

    def unknown_names(self, vocab: Vocab, numbers: np.ndarray) -> InputError:
        """The error for names that another vocabulary lacks: numbers[id] is −1."""
        missing = np.flatnonzero(numbers < 0)
        return InputError(
            f"{len(missing):,} of the corpus's {self.num_ids:,} names are not among the {len(vocab):,} of the model, "
            f"for example {self.vocab.name(int(missing[0]))!r}; extend the model by them, or train on this corpus"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether rows are in the order of time, and each is cut into training, validation and test."""
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
        """Return the rows of a split with at least two elements: one to hold out and one to see."""
        if self.is_ordered and split in self.cuts:
            begin, end = self._asked_range(split)
            return np.flatnonzero(begin < end)
        return np.flatnonzero(self._is_in(split) & (self.ends - self.offsets[:-1] >= 2))

    def asked(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """The elements that a split asks in rows in the order of time: their rows and their positions in them.

        These are the elements from the cut on, or only the first of them (asks_every). An element is asked if
        another one precedes it.
        """
        begin, end = self._asked_range(split)
        counts = np.maximum(0, end - begin)
        rows = np.repeat(np.arange(len(self)), counts)
        return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - begin, counts)

    def _asked_range(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Per row, the positions that a split asks: from begin to before end."""
        cut = self.cuts[split].astype(np.int64)
        end = self.cuts["test"].astype(np.int64) if split == "valid" else np.diff(self.offsets)
        if self.asks_every:
            return np.maximum(1, cut), end
        return cut, np.where(cut >= 1, np.minimum(cut + 1, end), cut)

    @property
    def asks_every(self) -> bool:
        """Whether every held-out element of a row in the order of time is asked, instead of the first one."""
        return self.info.get("asks") == "every"

    def num_asked(self, split: str) -> int:
        """The number of elements that a split asks: one per row, unless rows are in the order of time."""
        return len(self.asked(split)[0]) if self.is_ordered and split in self.cuts else len(self.rows(split))

    def id_counts(self, split: str, inputs: bool = False) -> np.ndarray:
        """Count how often each id is a target in a split, or an input if inputs is set; (ids of that vocabulary,)."""
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
    def repeats(self) -> float | None:
        """The share of training targets that stand elsewhere in their own segment; None where that means nothing."""
        if self.target_vocab is not None or self.vocab.is_text:
            return None
        rows = self.rows("train")
        return share_of_repeats(self.ids, self.offsets[rows], self.ends[rows], self.is_ordered)

    @cached_property
    def sentence_starts(self) -> np.ndarray:
        """The positions in `ids` at which sentences begin, ascending."""
        assert self.sentences is not None
        offsets, positions = self.sentences
        return positions + np.repeat(self.offsets[:-1], np.diff(offsets))

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Checksums of the names, and of the rows with their splits; the same in memory and on disk."""
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
        """Return one checksum of names and rows."""
        return hashlib.sha256("".join(self.checksums.values()).encode()).hexdigest()


def _replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _numbered(name: str, rows: Iterable[Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """The rows with keys that are this name and their number."""
    return ((f"{name} {number}", row) for number, row in enumerate(rows))


def _coded(rows: Iterable[Any], code: int, codes: array[int]) -> Iterator[Any]:
    """The rows, each noted as one of this split."""
    for row in rows:
        codes.append(code)
        yield row


def _lists(values: np.ndarray, row_of: np.ndarray, num_rows: int) -> pa.LargeListArray:
    """Group values by their rows, which ascend; a row may be empty."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=num_rows))]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values, type=pa.int32()))
