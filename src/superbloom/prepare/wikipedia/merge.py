"""The parts of a dump → one corpus: names get numbers, redirects are followed, ids are given by frequency.

Names stay in DuckDB, on disk. Memory holds a few arrays with a number per distinct name, and the links of one part at
a time. The result depends on the dump alone, not on how it was cut or how DuckDB numbered the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from superbloom.config import WikipediaOptions
from superbloom.corpus import Corpus, Vocab, check_enough_names, split_of
from superbloom.errors import InputError
from superbloom.prepare.duck import literal_paths, new_database, numbers_of_names
from superbloom.prepare.wikipedia.parts import ARTICLE, DISAMBIGUATION
from superbloom.prepare.wikipedia.wikitext import NO_TITLE, OTHER_NAMESPACE, OTHER_WIKI
from superbloom.progress import Progress, Watch, unwatched

# Where a name leads, if not to a name: to no page of the dump, to no article, or to an article that is left out.
MISSING, ASTRAY, LEFT_OUT = -1, -2, -3
BLOCK_ROWS = 2**17
BLOCK_LINKS = 2**22


class Rows(NamedTuple):
    """The articles in order: the number of each title, its number of links, and all links as numbers."""

    titles: np.ndarray
    lengths: np.ndarray
    links: np.ndarray


def merge(
    folder: Path, parts: Sequence[str], options: WikipediaOptions, memory: int, threads: int, watch: Watch = unwatched
) -> tuple[Corpus, Counter[str]]:
    """The corpus, whose arrays still lie in the folder, and the counts of all steps."""
    counts: Counter[str] = Counter()
    with new_database(folder / "names.duckdb", memory, threads) as database:
        names = Names(database, folder, parts, watch)
        with watch("following links", 2 * len(parts), False) as names.progress:
            leads_to, new = read_pages(names, counts)
            ends_at = follow_redirects(leads_to, options.open_links)
            rows = read_links(names, ends_at, new, options.drop_repeats, counts)
        vocab, ids = rank(names, rows, options, counts)
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
    """The distinct names of all parts, numbered by the rows of a table, and the numbers of the names of each part."""

    def __init__(self, database: duckdb.DuckDBPyConnection, folder: Path, parts: Sequence[str], watch: Watch) -> None:
        self.database, self.folder, self.parts = database, folder, parts
        self.progress: Progress = lambda _: None  # called with each part that is read
        files = literal_paths([folder / f"{part}.parquet" for part in parts])
        # Without hive_partitioning = false, a folder named key=value would become a column.
        source = "read_parquet(?, hive_partitioning = false)"
        with watch("merging names", None, False):
            database.execute(f"CREATE TABLE names AS SELECT DISTINCT name FROM {source}", [files])
        self.size = int(database.sql("SELECT count(*) FROM names").fetchall()[0][0])
        self.starts = np.cumsum([0, *(int(arrays["names"]) for arrays in self.arrays())])
        with watch("numbering names", int(self.starts[-1]), False) as progress:
            self.numbers = numbers_of_names(database, "names", files, self.starts, folder / "numbers", progress)

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays of each part."""
        for part in self.parts:
            with np.load(self.folder / f"{part}.npz") as arrays:
                yield arrays

    def numbered(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the arrays of each part and the numbers of its names."""
        for arrays, start, stop in zip(self.arrays(), self.starts, self.starts[1:], strict=False):
            yield arrays, self.numbers[start:stop]
            self.progress(1)

    def spell(self, numbers: np.ndarray) -> pa.Array:
        """The names with these numbers, in this order."""
        wanted = pa.table({"number": numbers, "place": np.arange(len(numbers))})
        query = "SELECT name FROM wanted JOIN names ON names.rowid = number ORDER BY place"
        return _large(self.select(wanted, query)["name"])

    def select(self, wanted: pa.Table, query: str) -> pa.Table:
        """Run a query over the tables `names` and `wanted`."""
        self.database.register("wanted", wanted)
        return self.database.sql(query).to_arrow_table()


def read_pages(names: Names, counts: Counter[str]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Where each name leads, and for each part, which of its pages are the first with their title."""
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
    """For each name, the name that its redirects end at, or a code if there is none. open: the end needs no page.

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
    # Each round doubles the number of redirects that were followed. What still moves after the last one is a loop.
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
    names: Names, ends_at: np.ndarray, new: list[np.ndarray], drop_repeats: bool, counts: Counter[str]
) -> Rows:
    """The links of all articles, as numbers of the articles that they end at."""
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
            if drop_repeats:
                once = np.sort(np.unique(row_of.astype(np.int64) << 32 | found, return_index=True)[1])
                counts["repeated on a page"] += len(found) - len(once)
                row_of, found = row_of[once], found[once]
            articles = first & (arrays["leads_to"] == ARTICLE)
            titles.append(pages[articles])
            lengths.append(np.bincount(row_of, minlength=len(pages))[articles])
            file.write(found)  # subtle: tofile would lose the last bytes on a full disk without an error
    return Rows(np.concatenate(titles), np.concatenate(lengths), _map(path))


def rank(names: Names, rows: Rows, options: WikipediaOptions, counts: Counter[str]) -> tuple[Vocab, np.ndarray]:
    """The vocabulary by falling frequency, and the id for the number of each name, −1 if the name is left out."""
    frequency = np.zeros(names.size, dtype=np.int64)
    for block in np.array_split(rows.links, max(1, len(rows.links) // BLOCK_LINKS)):
        np.add.at(frequency, block, 1)
    counts["distinct targets"] = int((frequency > 0).sum())
    if counts["distinct targets"] < 2 and counts["to missing pages"]:
        raise InputError(
            f"{counts['to missing pages']:,} of {counts['links']:,} links lead to pages that are not in these files, "
            f"which leaves {counts['distinct targets']} to predict; --open keeps them"
        )
    enough = np.flatnonzero(frequency >= options.min_count)
    most = frequency.max(initial=0)
    check_enough_names(len(enough), counts["distinct targets"], options.min_count, options.max_names, most)
    wanted = pa.table({"number": enough, "count": frequency[enough]})
    query = "SELECT number, name, count FROM wanted JOIN names ON names.rowid = number ORDER BY count DESC, name"
    found = names.select(wanted, query if options.max_names is None else f"{query} LIMIT {options.max_names}")
    ids = np.full(names.size, -1, dtype=np.int32)
    ids[found["number"].to_numpy()] = np.arange(len(found), dtype=np.int32)
    return Vocab.from_ranked(_large(found["name"]), found["count"].to_numpy()), ids


def translate(rows: Rows, ids: np.ndarray) -> np.ndarray:
    """Turn the links into ids, in place, and remove links without an id; the number of links left in each row."""
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
