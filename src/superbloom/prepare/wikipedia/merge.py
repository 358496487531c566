"""From the parts of a dump to one corpus: names get one number everywhere, redirects are followed, ids are given.

Names stay in DuckDB, on disk; memory holds a few arrays with a number for each distinct name, and the links of one
part at a time. What comes out depends on the dump alone, not on how it was cut or how DuckDB numbered the names.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from superbloom.corpus import Corpus, Vocab, check_enough, split_of
from superbloom.errors import InputError
from superbloom.prepare.duck import duckdb_told
from superbloom.prepare.files import mapped
from superbloom.prepare.wikipedia.parts import ARTICLE, DISAMBIGUATION
from superbloom.prepare.wikipedia.wikitext import NO_TITLE, OTHER_NAMESPACE, OTHER_WIKI

# Where a name leads, beside the number of a name: to no page of the dump, to no article, or to one left out.
MISSING, ASTRAY, LEFT_OUT = -1, -2, -3
BLOCK_ROWS = 2**17


class Selection(NamedTuple):
    """Which links and names are kept."""

    open: bool = False
    drop_repeats: bool = False
    min_count: int = 1
    max_names: int | None = None


class Rows(NamedTuple):
    """The articles in order: the number of each title, how many links it has, and all those as numbers."""

    titles: np.ndarray
    lengths: np.ndarray
    links: np.ndarray


def merge(
    folder: Path, parts: Sequence[str], selection: Selection, memory: int, threads: int
) -> tuple[Corpus, Counter[str]]:
    """The corpus, whose arrays still lie in the folder, and what was counted on the way."""
    counts: Counter[str] = Counter()
    with duckdb_told(), closing(Names(folder, parts, memory, threads)) as names:
        leads_to, new = read_pages(names, counts)
        ends_at = follow_redirects(leads_to, selection.open)
        rows = read_links(names, ends_at, new, selection, counts)
        vocab, ids = rank(names, rows, selection, counts)
        lengths = translate(rows, ids)
        filled = lengths > 0
        counts["to entities left out"] = len(rows.links) - int(lengths.sum())
        counts["kept"] = int(lengths.sum())
        counts["entities"] = len(vocab)
        counts["rows"] = int(filled.sum())
        keys = names.spell(rows.titles[filled])
    offsets = np.concatenate([[0], np.cumsum(lengths[filled], dtype=np.int64)])
    values = pa.Array.from_buffers(pa.int32(), offsets[-1], [None, pa.py_buffer(rows.links)])
    columns = {
        "key": keys,
        "ids": pa.LargeListArray.from_arrays(pa.array(offsets), values),
        "split": split_of(keys.to_pylist()),
    }
    return Corpus(vocab, pa.table(columns)), counts


class Names:
    """The distinct names of all parts, numbered, and for each part the numbers of its names."""

    def __init__(self, folder: Path, parts: Sequence[str], memory: int, threads: int) -> None:
        self.folder, self.parts = folder, parts
        database = folder / "names.duckdb"
        database.unlink(missing_ok=True)
        config: dict[str, Any] = {"memory_limit": f"{memory}B", "threads": threads, "temp_directory": str(folder)}
        self.database = duckdb.connect(str(database), config=config | {"preserve_insertion_order": False})
        # Paths are patterns to DuckDB, and folders named key=value columns.
        files = [glob.escape(str(folder / f"{part}.parquet")) for part in parts]
        source = "read_parquet(?, hive_partitioning = false, file_row_number = true)"
        self.database.execute(f"CREATE TABLE names AS SELECT DISTINCT name FROM {source}", [files])
        self.size = int(self.database.sql("SELECT count(*) FROM names").fetchall()[0][0])
        self.starts = np.cumsum([0, *(int(arrays["names"]) for arrays in self.arrays())])
        self.numbers = mapped(folder / "numbers", np.int32, int(self.starts[-1]))
        found = self.database.sql(
            f"SELECT part.file_index, part.file_row_number, names.rowid FROM {source} AS part JOIN names USING (name)",
            params=[files],
        )
        for batch in found.to_arrow_reader(2**20):
            part, place, number = (column.to_numpy() for column in batch.columns)
            self.numbers[self.starts[part.astype(np.int64)] + place] = number

    def close(self) -> None:
        self.database.close()

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays of each part."""
        for part in self.parts:
            with np.load(self.folder / f"{part}.npz") as arrays:
                yield arrays

    def numbered(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the arrays of each part and the numbers of its names."""
        for arrays, start, stop in zip(self.arrays(), self.starts, self.starts[1:], strict=False):
            yield arrays, self.numbers[start:stop]

    def spell(self, numbers: np.ndarray) -> pa.Array:
        """The names with these numbers, in this order."""
        wanted = pa.table({"number": numbers, "place": np.arange(len(numbers))})
        query = "SELECT name FROM wanted JOIN names ON names.rowid = number ORDER BY place"
        return _large(self.select(wanted, query)["name"])

    def select(self, wanted: pa.Table, query: str) -> pa.Table:
        """Run a query over the names and a table of numbers wanted."""
        self.database.register("wanted", wanted)
        return self.database.sql(query).to_arrow_table()


def read_pages(names: Names, counts: Counter[str]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Where each name leads, and for each part which of its pages are the first of their title."""
    leads_to = np.full(names.size, MISSING, dtype=np.int32)
    new = []
    for arrays, numbers in names.numbered():
        titles, redirects = numbers[arrays["pages"]], arrays["leads_to"]
        first = np.zeros(len(titles), dtype=bool)
        first[np.unique(titles, return_index=True)[1]] = True
        first &= leads_to[titles] == MISSING
        targets = np.full(len(titles), ASTRAY, dtype=np.int32)
        is_redirect = redirects >= 0
        targets[is_redirect] = numbers[redirects[is_redirect]]
        targets[targets == titles] = ASTRAY  # a redirect to itself
        targets[redirects == ARTICLE] = titles[redirects == ARTICLE]
        targets[redirects == DISAMBIGUATION] = LEFT_OUT
        leads_to[titles[first]] = targets[first]
        new.append(first)
        articles, disambiguations = (int((redirects == kind).sum()) for kind in (ARTICLE, DISAMBIGUATION))
        counts["articles"] += articles
        counts["disambiguations"] += disambiguations
        counts["redirects"] += len(redirects) - articles - disambiguations
        counts["repeated titles"] += int((~first).sum())
    return leads_to, new


def follow_redirects(leads_to: np.ndarray, open: bool) -> np.ndarray:
    """Return, for each name, the name its redirects end at, or why nowhere; open allows an end without a page.

    >>> follow_redirects(np.array([0, 2, 0, 4, 3, 6, MISSING]), open=False).tolist()
    [0, 0, 0, -2, -2, -1, -1]
    >>> follow_redirects(np.array([0, 2, 0, 4, 3, 6, MISSING]), open=True).tolist()
    [0, 0, 0, -2, -2, 6, 6]
    """
    ends_at = leads_to.copy()
    if open:
        missing = np.flatnonzero(leads_to == MISSING)
        ends_at[missing] = missing
    settled = ends_at == np.arange(len(ends_at))
    moving = np.flatnonzero((ends_at >= 0) & ~settled)
    # Each round doubles how many redirects have been followed; what goes on after all of them is a loop.
    for _ in range(len(moving).bit_length() + 1):
        here = ends_at[moving]
        further = np.where(here >= 0, ends_at[here], here)
        if (further == here).all():
            break
        ends_at[moving] = further
    here = ends_at[moving]
    ends_at[moving[(here >= 0) & ~settled[here]]] = ASTRAY
    return ends_at


def read_links(
    names: Names, ends_at: np.ndarray, new: list[np.ndarray], selection: Selection, counts: Counter[str]
) -> Rows:
    """The links of all articles as the numbers of the articles they end at."""
    titles, lengths = [], []
    path = names.folder / "links"
    with path.open("wb") as file:
        for (arrays, numbers), first in zip(names.numbered(), new, strict=True):
            pages, written, links = numbers[arrays["pages"]], arrays["lengths"], arrays["links"]
            dropped = arrays["dropped"]
            counts["links"] += len(links) + int(dropped.sum())
            counts["in other namespaces"] += int(dropped[-OTHER_NAMESPACE])
            counts["to other wikis"] += int(dropped[-OTHER_WIKI])
            counts["that name no page"] += int(dropped[-NO_TITLE])
            row_of = np.repeat(np.arange(len(pages)), written)
            if not first.all():
                kept = first[row_of]
                counts["of repeated titles"] += int((~kept).sum())
                row_of, links = row_of[kept], links[kept]
            found = ends_at[numbers[links]]
            counts["to missing pages"] += int((found == MISSING).sum())
            counts["to redirects that end at no article"] += int((found == ASTRAY).sum())
            counts["to disambiguation pages"] += int((found == LEFT_OUT).sum())
            itself = found == pages[row_of]
            counts["to the page itself"] += int(itself.sum())
            kept = (found >= 0) & ~itself
            row_of, found = row_of[kept], found[kept]
            if selection.drop_repeats:
                once = np.sort(np.unique(row_of.astype(np.int64) << 32 | found, return_index=True)[1])
                counts["repeated on a page"] += len(found) - len(once)
                row_of, found = row_of[once], found[once]
            articles = first & (arrays["leads_to"] == ARTICLE)
            titles.append(pages[articles])
            lengths.append(np.bincount(row_of, minlength=len(pages))[articles])
            file.write(found)  # subtle: not tofile, which loses the last bytes of a full disk without a word
    return Rows(np.concatenate(titles), np.concatenate(lengths), _map(path))


def rank(names: Names, rows: Rows, selection: Selection, counts: Counter[str]) -> tuple[Vocab, np.ndarray]:
    """The vocabulary by falling frequency, and the id of each name's number, −1 where it was left out."""
    frequency = np.zeros(names.size, dtype=np.int64)
    for block in np.array_split(rows.links, max(1, len(rows.links) // 2**22)):
        np.add.at(frequency, block, 1)
    counts["distinct targets"] = int((frequency > 0).sum())
    if counts["distinct targets"] < 2 and counts["to missing pages"]:
        raise InputError(
            f"{counts['to missing pages']:,} of {counts['links']:,} links lead to pages that are not in these files, "
            f"which leaves {counts['distinct targets']} to predict; --open keeps them"
        )
    enough = np.flatnonzero(frequency >= selection.min_count)
    check_enough(
        len(enough), counts["distinct targets"], selection.min_count, selection.max_names, frequency.max(initial=0)
    )
    wanted = pa.table({"number": enough, "count": frequency[enough]})
    query = "SELECT number, name, count FROM wanted JOIN names ON names.rowid = number ORDER BY count DESC, name"
    found = names.select(wanted, query if selection.max_names is None else f"{query} LIMIT {selection.max_names}")
    ids = np.full(names.size, -1, dtype=np.int32)
    ids[found["number"].to_numpy()] = np.arange(len(found), dtype=np.int32)
    return Vocab.from_ranked(_large(found["name"]), found["count"].to_numpy()), ids


def translate(rows: Rows, ids: np.ndarray) -> np.ndarray:
    """Turn the links into ids, in place, without those that have none; return how many each row has left."""
    ends = np.cumsum(rows.lengths)
    lengths, at, done = [], 0, 0
    for begin in range(0, len(ends), BLOCK_ROWS):
        row_lengths = rows.lengths[begin : begin + BLOCK_ROWS]
        end = int(ends[begin + len(row_lengths) - 1])
        found = ids[rows.links[at:end]]
        kept = found >= 0
        if not kept.all():
            row_of = np.repeat(np.arange(len(row_lengths)), row_lengths)
            row_lengths = np.bincount(row_of[kept], minlength=len(row_lengths))
            found = found[kept]
        lengths.append(row_lengths)
        rows.links[done : done + len(found)] = found
        at, done = end, done + len(found)
    return np.concatenate(lengths)


def _map(path: Path) -> np.ndarray:
    return np.memmap(path, np.int32, "r+") if path.stat().st_size else np.empty(0, np.int32)


def _large(names: pa.ChunkedArray) -> pa.Array:
    return names.cast(pa.large_string()).combine_chunks()
