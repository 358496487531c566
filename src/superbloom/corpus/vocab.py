"""Names, ids and counts of a catalogue: id 0 is the most frequent name; equal counts are in order of their names.

A vocabulary is one memory-mapped Arrow file with three columns: name, count, and by_name (the ids sorted by name).
Binary search over by_name finds a name, or the range of names with a prefix, without a dictionary in memory. So five
million names open in a fraction of a second. Ids are frequency ranks: the smallest ids of a range are its best
completions. Names as people type them, without case, accents and punctuation, are found by a second order (folded.py),
which is made when it is first needed. A vocabulary of text (Sec. 4) also has the kind of every entry, and its metadata
says how to normalise text; it needs no other file to read text (segmenter.py).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.corpus.folded import FoldedOrder, fold, fold_name, with_word
from superbloom.corpus.segmenter import Kind, Segmenter
from superbloom.corpus.words import NORMALISATIONS
from superbloom.errors import InputError, UnknownNameError
from superbloom.storage import read_arrow, write_arrow

# The address of a page of a MediaWiki site; its group is the title.
WIKI_ADDRESS = re.compile(r"https?://[^/\s]+/(?:wiki/|(?:w/)?index\.php(?:/|\?(?:[^#]*&)?title=))([^?&#]+)")

MAX_FUZZY_CANDIDATES = 20_000  # names that a fuzzy look-up compares per prefix, the most frequent ones
MAX_FUZZY_CHARS = 200  # a longer name is no misspelling
MIN_FUZZY_SCORE = 75  # per cent of similarity
NAMES_PER_SEARCH = 300  # names that are put into a hash table in the time of one binary search
MAX_SUGGESTED = 3  # names that an unknown name may mean

NORMALISATION_KEY = b"superbloom.text"  # in the metadata of the file: how to normalise text before looking it up


class Vocab:
    """Name ↔ id ↔ count.

    >>> vocab = Vocab.from_counts({"Oslo": 1, "Denmark": 5, "Aarhus": 1})
    >>> vocab.id("Denmark"), vocab.names([0, 1, 2]), vocab.count(2)
    (0, ['Denmark', 'Aarhus', 'Oslo'], 1)
    >>> vocab.starting_with("o"), vocab.closest("Danmark")
    (['Oslo'], ['Denmark'])
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._names = table["name"].chunk(0)
        # to_numpy would import pandas if it is installed, which takes most of a second.
        self.counts: np.ndarray = np.from_dlpack(table["count"].chunk(0))
        self._by_name: np.ndarray = np.from_dlpack(table["by_name"].chunk(0))
        # Text only: the Kind of each id, int8, and how text is normalised.
        self.kinds: np.ndarray | None = np.from_dlpack(table["kind"].chunk(0)) if "kind" in table.column_names else None
        encoded = (table.schema.metadata or {}).get(NORMALISATION_KEY)
        self.normalisation: str | None = None if encoded is None else encoded.decode(errors="replace")

    @property
    def is_text(self) -> bool:
        """Whether entries are word pieces, words and bigrams. If so, the vocabulary can read text."""
        return self.kinds is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the table only; the rest is computed from it again."""
        return type(self), (self.table,)

    @classmethod
    def from_counts(cls, counts: dict[str, int]) -> Vocab:
        return cls.from_arrays(list(counts), np.fromiter(counts.values(), dtype=np.int64, count=len(counts)))[0]

    @classmethod
    def from_arrays(
        cls,
        names: Sequence[str],
        counts: np.ndarray,
        kinds: np.ndarray | None = None,
        normalisation: str | None = None,
    ) -> tuple[Vocab, np.ndarray]:
        """Return the vocabulary of distinct names with their counts, and the id of each name."""
        if not len(names):
            raise InputError("no names given; at least one is needed")
        unsorted = _name_array(names)
        alphabetical = pc.sort_indices(unsorted).to_numpy()
        # A stable sort keeps equal counts in alphabetical order.
        ranked = alphabetical[np.argsort(-np.asarray(counts)[alphabetical], kind="stable")]
        ids = np.empty(len(ranked), dtype=np.int32)
        ids[ranked] = np.arange(len(ranked), dtype=np.int32)
        table = pa.table(
            {"name": unsorted.take(pa.array(ranked)), "count": np.asarray(counts)[ranked], "by_name": ids[alphabetical]}
        )
        table = _with_kinds(table, None if kinds is None else np.asarray(kinds)[ranked], normalisation)
        return cls(table.combine_chunks()), ids

    @classmethod
    def from_ranked(
        cls, names: pa.Array, counts: np.ndarray, kinds: np.ndarray | None = None, normalisation: str | None = None
    ) -> Vocab:
        """Return the vocabulary of names that already are in order: by falling count, equal counts by name."""
        table = pa.table({"name": names, "count": counts, "by_name": pc.sort_indices(names).cast(pa.int32())})
        return cls(_with_kinds(table, kinds, normalisation))

    @classmethod
    def open(cls, path: str | Path, copy: bool = False) -> Vocab:
        """Memory-map a vocabulary file, or copy it into memory. Files of other programs may leave by_name out."""
        columns = {"name": pa.large_string(), "count": pa.int64(), "by_name": pa.int32(), "kind": pa.int8()}
        table = read_arrow(path, columns, optional=("by_name", "kind"), copy=copy)
        if "by_name" not in table.column_names:
            alphabetical = pc.sort_indices(table["name"]).cast(pa.int32())
            names = table["name"].chunk(0).take(alphabetical)
            if pc.any(pc.equal(names[:-1], names[1:])).as_py():
                raise InputError(f"{path}: a name occurs twice; give every name one row")
            table = table.append_column("by_name", alphabetical)
        vocab = cls(table)
        by_name, counts = vocab._by_name, vocab.counts
        # subtle: read as unsigned, a negative id is too large and fails the same test
        if by_name.view(np.uint32).max() >= len(vocab) or not np.bincount(by_name, minlength=len(vocab)).all():
            raise InputError(f"{path}: column by_name is not an ordering of the ids; write the file again")
        if counts.min() < 0 or (np.diff(counts) > 0).any():
            raise InputError(f"{path}: names must be in order of falling counts; sort them and write it again")
        vocab._check_text(path)
        return vocab

    def _check_text(self, path: str | Path) -> None:
        """Refuse kinds that do not fit the names, and unknown ways to normalise text."""
        kinds, normalisation = self.kinds, self.normalisation
        if kinds is None and normalisation is None:
            return
        if kinds is None or normalisation not in NORMALISATIONS:
            found = "no column 'kind'" if kinds is None else f"{NORMALISATION_KEY.decode()} is {normalisation!r:.40}"
            *most, last = map(repr, NORMALISATIONS)
            allowed = f"{', '.join(most)} or {last}"
            raise InputError(
                f"{path}: {found}; text needs kinds, and {NORMALISATION_KEY.decode()} {allowed} in the metadata"
            )
        if kinds.min() < 0 or kinds.max() > max(Kind):
            raise InputError(f"{path}: kinds from {kinds.min()} to {kinds.max()}; 0 to {max(Kind)} are allowed")
        wrong = np.flatnonzero(_spaces(self._names) != np.equal(kinds, Kind.BIGRAM))
        if len(wrong):
            name, kind = self.name(int(wrong[0])), Kind(int(kinds[wrong[0]])).name
            raise InputError(
                f"{path}: {name!r:.80} is no {kind}; a BIGRAM is two words with one space, other kinds have no space"
            )

    def extended(self, names: Iterable[str]) -> tuple[Vocab, list[str]]:
        """Return the vocabulary with new names appended, each once with count 0, and the list of new names."""
        if isinstance(names, str):
            raise InputError(f"the text {names!r} given as names; give a list of names")
        new = [name for name in dict.fromkeys(map(str, names)) if name not in self]
        if not new:
            raise InputError(f"no new name given; all given names are among the {len(self):,} names already")
        added = _name_array(new)
        whole = pa.concat_arrays([self._names, added])
        counts = np.concatenate([self.counts, np.zeros(len(new), np.int64)])
        if self.kinds is None:
            return self.from_ranked(whole, counts), new
        for name in new:
            written = self.segmenter.reader.written(name)
            if written != name or len(name.split(" ")) > 2 or not name:
                raise InputError(
                    f"{name!r} given; a name in text is one or two words, and this one reads as {written!r}"
                )
        kinds = np.concatenate([self.kinds, np.where(_spaces(added) == 1, Kind.BIGRAM, Kind.UNIGRAM).astype(np.int8)])
        return self.from_ranked(whole, counts, kinds, self.normalisation), new

    def write(self, path: str | Path) -> None:
        write_arrow(self.table, path)

    @cached_property
    def segmenter(self) -> Segmenter:
        """Turns text into ids of this vocabulary; raises InputError if it is no vocabulary of text."""
        if self.kinds is None or self.normalisation is None:
            raise InputError("this catalogue cannot read text; only one made by `prepare text` can")
        return Segmenter(self._names, self.kinds, self.normalisation)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def name(self, id_: int) -> str:
        if not 0 <= id_ < len(self):
            raise InputError(f"id {id_} given; the ids of these {len(self):,} names are 0 to {len(self) - 1}")
        return str(self._names[int(id_)].as_py())

    def names(self, ids: Iterable[int]) -> list[str]:
        return [self.name(id_) for id_ in ids]

    def count(self, id_: int) -> int:
        return int(self.counts[id_])

    def find(self, name: str) -> int | None:
        """Return the id of a name, or None."""
        position = self._position(name)
        if position < len(self) and self._name_at(position) == name:
            return int(self._by_name[position])
        return None

    def find_all(self, names: pa.Array) -> np.ndarray:
        """Return the id of each name of an Arrow array, −1 where there is none; int32.

        >>> Vocab.from_counts({"a": 2, "b": 1}).find_all(pa.array(["b", None, "c", "b"])).tolist()
        [1, -1, -1, 1]
        """
        encoded = names.cast(pa.large_string()).dictionary_encode()
        if len(encoded.dictionary) * NAMES_PER_SEARCH < len(self):
            found = ((-1 if (id_ := self.find(name)) is None else id_) for name in encoded.dictionary.to_pylist())
            ids = np.fromiter(found, np.int32, len(encoded.dictionary))
        else:
            ids = pc.fill_null(pc.index_in(encoded.dictionary, value_set=self._names), -1).to_numpy()
        return np.append(ids, np.int32(-1))[pc.fill_null(encoded.indices, -1).to_numpy()]

    def id(self, name: str) -> int:
        """Return the id of a name, of the title it spells, or of the one name that differs in case, accents and marks.

        An exact name always wins. Raises UnknownNameError with suggestions if no name fits, or several do.

        >>> vocab = Vocab.from_counts({"Miles Davis": 3, "Orly": 2, "São Tomé": 1})
        >>> vocab.id("https://en.wikipedia.org/wiki/Miles_Davis#Life"), vocab.id("miles davis"), vocab.id("SAO TOME")
        (0, 0, 2)
        """
        found = next((id_ for spelling in spellings(name) if (id_ := self.find(spelling)) is not None), None)
        if found is None:
            found = self._as_typed([*spellings(name)][-1])
        if found is None:
            raise UnknownNameError(name, len(self), lambda: self.closest(name))
        return found

    @cached_property
    def folded(self) -> FoldedOrder:
        """The order of folded names; made on first use, in half a second per million names."""
        return FoldedOrder(self._names)

    def _as_typed(self, name: str) -> int | None:
        """The id of the one name that differs in case; else of the one that differs in accents and marks as well."""
        same = self.folded.same(fold_name(name)).tolist()
        in_case = [id_ for id_ in same if self.name(id_).casefold() == name.casefold()]
        found = in_case or same
        return found[0] if len(found) == 1 else None

    def numbers_in(self, other: Vocab) -> np.ndarray:
        """Return the id in another vocabulary of each name, (names,); −1 if it lacks the name.

        >>> Vocab.from_counts({"a": 2, "b": 1}).numbers_in(Vocab.from_counts({"b": 9, "c": 1})).tolist()
        [-1, 0]
        """
        theirs = other.table["name"].combine_chunks()
        return np.asarray(pc.fill_null(pc.index_in(self._names, value_set=theirs), -1).to_numpy())

    def starting_with(self, prefix: str, k: int = 10) -> list[str]:
        """Return the k most frequent names that start with a prefix, whatever its case, accents and marks."""
        return self.names(self.completions(prefix, k).tolist())

    def closest(self, name: str, k: int = MAX_SUGGESTED) -> list[str]:
        """Return the names that an unknown name may mean, best first; none if nothing is close.

        They are names that differ in case and marks only, then names that begin with these words, or have them inside,
        then names that begin with these letters, then names that look alike. The most frequent come first.

        >>> vocab = Vocab.from_counts({"Monty Python": 9, "Pythons": 8, "Python (language)": 7, "Pithon": 1})
        >>> vocab.closest("python", k=4)
        ['Python (language)', 'Monty Python', 'Pythons', 'Pithon']
        """
        if len(name) > MAX_FUZZY_CHARS:
            return []
        folded = fold_name(name)
        found = dict.fromkeys(self.folded.same(folded).tolist())
        if folded:
            words = np.sort(_smallest(self.folded.beginning(f"{folded} "), k)).tolist()
            inside = with_word(self._names, folded, k)
            letters = self.completions(folded, k).tolist()
            found |= dict.fromkeys([*words[: k - 1], *inside[:1], *words, *inside, *letters])
        names = self.names([*found][:k])
        return names if len(names) == k else [*dict.fromkeys([*names, *self._alike(name, k)])][:k]

    def _alike(self, name: str, k: int) -> list[str]:
        """The names that a misspelt name may mean, best first."""
        from rapidfuzz import fuzz, process

        prefixes = {name[:length] for length in (1, 2, 3, len(name) * 2 // 3)} | {""}
        ids = np.unique(np.concatenate([self.completions(prefix, MAX_FUZZY_CANDIDATES) for prefix in prefixes]))
        candidates = fold(self._names.take(pa.array(ids))).to_pylist()
        # rapidfuzz keeps the first of equally similar names: the most frequent one, since ids are sorted.
        found = process.extract(
            fold_name(name), candidates, scorer=fuzz.ratio, limit=k, score_cutoff=MIN_FUZZY_SCORE, processor=None
        )
        return self.names([int(ids[place]) for form, _, place in found if form])

    def completions(self, prefix: str, k: int) -> np.ndarray:
        """Return the ids of the k most frequent names that start with a prefix, ascending.

        Case, accents and marks do not matter. A prefix of marks alone is taken as it is typed.
        """
        if not prefix:
            return np.arange(min(k, len(self)), dtype=np.int32)
        folded = fold_name(prefix)
        found = self.folded.beginning(folded) if folded else self._by_name[slice(*self._range(prefix))]
        return np.sort(_smallest(found, k))

    def _range(self, prefix: str) -> tuple[int, int]:
        """Return the first and last position (exclusive) of the names with this prefix, in alphabetical order."""
        low = self._position(prefix)
        high = bisect_left(
            range(len(self)), True, lo=low, key=lambda position: not self._name_at(position).startswith(prefix)
        )
        return low, high

    def _position(self, name: str) -> int:
        return bisect_left(range(len(self)), name, key=self._name_at)

    def _name_at(self, position: int) -> str:
        return str(self._names[int(self._by_name[position])].as_py())


def spellings(name: str) -> Iterator[str]:
    """Yield a name as it is, then the titles it may stand for: with underscores, a small letter, or as an address.

    >>> list(spellings("https://da.wikipedia.org/w/index.php?title=%C3%98l_(drik)&action=edit"))[1:]
    ['Øl (drik)', 'Øl (drik)']
    """
    yield name
    if address := WIKI_ADDRESS.match(name):
        name = unquote(address[1])
    name = " ".join(name.replace("_", " ").split())
    yield name
    yield name[:1].upper() + name[1:]


def _name_array(names: Sequence[str]) -> pa.Array:
    try:
        return pa.array(names, type=pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(f"name {error.object!r} holds a lone surrogate; names must be Unicode text") from None


def _smallest(ids: np.ndarray, k: int) -> np.ndarray:
    """Return the k smallest ids, in any order."""
    return ids if len(ids) <= k else np.partition(ids, k)[:k]


def _with_kinds(table: pa.Table, kinds: np.ndarray | None, normalisation: str | None) -> pa.Table:
    if kinds is None:
        return table
    table = table.append_column("kind", pa.array(kinds, pa.int8()))
    return table.replace_schema_metadata({NORMALISATION_KEY: str(normalisation)})


def _spaces(names: pa.Array) -> np.ndarray:
    """Return 1 for a name of two words with one space, 0 for a word, and 2 for anything else."""
    spaces = pc.count_substring(names, " ").to_numpy()
    odd = pc.or_(pc.or_(pc.starts_with(names, " "), pc.ends_with(names, " ")), pc.equal(names, ""))
    return np.where(odd.to_numpy(zero_copy_only=False), 2, np.minimum(spaces, 2))
