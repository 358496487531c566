"""The files of rules: allowed and excluded items, categories, titles; text, one entry per line.

an item                 for all users
a user, a tab, an item  for that user
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from superbloom.errors import InputError
from superbloom.prepare.files import open_lines


@dataclass
class ItemLists:
    """Items for all users, and items of single users as a table: user, items."""

    shared: list[str] = field(default_factory=list)
    own: pa.Table | None = None

    def items(self) -> pa.Array:
        """All items of the lists."""
        shared = pa.array(self.shared, pa.string())
        return shared if self.own is None else pa.concat_arrays([shared, self.own["items"].combine_chunks().flatten()])


def read_lists(file: Path) -> ItemLists:
    """The lists of a file of items, or of users and items."""
    lists, users, items = ItemLists(), [], []
    for number, line in enumerate(open_lines(file), 1):
        first, tab, second = line.partition("\t")
        if not tab:
            lists.shared += [first] if first else []
        elif first and second and "\t" not in second:
            users.append(first)
            items.append(second)
        else:
            raise InputError(f"line {number:,} of {file} is {line!r:.80}; give an item, or a user, a tab and an item")
    if users:
        table = pa.table({"user": pa.array(users, pa.string()), "items": pa.array(items, pa.string())})
        lists.own = table.group_by("user").aggregate([("items", "list")]).rename_columns(["user", "items"])
    return lists


def read_pairs(file: Path, what: str) -> dict[str, str]:
    """Text by item, of lines of an item, a tab and the text; anything after a second tab is left out."""
    found = {}
    for number, line in enumerate(open_lines(file), 1):
        item, tab, rest = line.partition("\t")
        if line and not tab:
            raise InputError(f"line {number:,} of {file} is {line!r:.80}; give an item, a tab and its {what}")
        if line:
            found[item] = rest.split("\t")[0]
    return found


def with_lists(batch: pa.RecordBatch, lists: dict[str, pa.Table]) -> pa.RecordBatch:
    """A batch of histories with a column of each of these lists; null for users without one.

    >>> own = pa.table({"user": ["b"], "items": [["x"]]})
    >>> with_lists(pa.record_batch({"user": ["a", "b"]}), {"allow": own})["allow"].to_pylist()
    [None, ['x']]
    """
    for name, own in lists.items():
        place = pc.index_in(batch["user"], value_set=own["user"].combine_chunks())
        batch = batch.append_column(name, own["items"].combine_chunks().take(place))
    return batch
