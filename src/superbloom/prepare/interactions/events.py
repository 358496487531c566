"""The steps on events, written once as Ibis expressions and run by either engine.

    clean     names become text; events without user, item or time are left out; exact repeats count once
    filter    rare items, items beyond the most frequent, and users with too few events are left out
    sort      by user, then time, then item; without times the events stay in the order of the log

Each step writes Parquet files to the temporary folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis import _

from superbloom.config import InteractionsOptions
from superbloom.errors import InputError
from superbloom.prepare.interactions.columns import TRAIN, Seen
from superbloom.prepare.interactions.engines import Engine
from superbloom.prepare.interactions.tables import Log
from superbloom.progress import Watch

MAX_UNREADABLE_SHARE = 0.1  # if a larger share of the times cannot be read, the log is refused


@dataclass(frozen=True)
class Events:
    """The sorted events of a log, in Parquet files of its temporary folder.

    items/    item, count, number: the items that are kept, numbered by name for now
    users/    user, count: the users that are kept, by name
    sorted/   number: the item of each event; for split="time" also at, its time; part if files say what is held out
    """

    folder: Path
    seen: Seen
    counts: dict[str, int]  # of events and items at each step

    def table(self, name: str) -> pa.Table:
        """A table that fits into memory."""
        return _table(self.folder / name)

    def parts(self, name: str) -> list[Path]:
        return _parts(self.folder / name)


def sort_events(log: Log, options: InteractionsOptions, engine: Engine, folder: Path, watch: Watch) -> Events:
    """Clean, filter and sort the events of a log."""

    def step(table: ir.Table, name: str) -> ir.Table:
        engine.write(table, folder / name)
        return engine.read(folder / name)

    with watch("counting items", None, False):
        raw = _named(engine.read(log.folder), log, options.is_split)
        engine.write(_missing(raw), folder / "missing")
        missing = _only_row(folder / "missing")
        _check_events(missing, log, options)
        events = _clean(raw, options)
        if options.time is not None or options.drop_repeats:
            events = step(events, "events")
        counts = step(events.group_by("item").agg(count=_.count(), **_held_out(options)), "counts")
        items = step(_kept_items(counts, options), "items")
        engine.write(_filtered(counts, items, options), folder / "filtered")
        filtered = _only_row(folder / "filtered")
    _check_items(filtered, options)
    with watch("counting users", None, False):
        part = ["part"] if options.is_split else []
        kept = events.join(items, "item").select("user", "at", "number", *part)
        users = step(_kept_users(kept, options), "users")
    with watch("ordering events", None, False):
        ordered = kept.semi_join(users, "user").order_by("user", *part, "at", "number")
        wanted = ("number", "at") if options.split == "time" else ("number", *part)
        engine.write(ordered.select(*wanted), folder / "sorted")
    return Events(folder, log.seen, missing | filtered)


def _named(table: ir.Table, log: Log, is_split: bool) -> ir.Table:
    """user and item as text, and at: what orders the events of a user. With is_split also what each is for."""
    columns = log.columns
    names = {role: _text(table[name]) for role, name in (("user", columns.user), ("item", columns.item))}
    at = table["row"] if columns.time is None else table[columns.time]
    if log.seen.fractions:
        at = at.cast("float64") + table["fraction"]
    part = {"part": table["part"]} if is_split else {}
    return table.select(**names, at=at, **part)


def _text(column: Any) -> Any:
    return column.nullif("") if column.type().is_string() else column.cast("string")


def _missing(raw: ir.Table) -> ir.Table:
    """One row: the number of events, and of those that lack a user, an item or a time."""
    named = raw.user.notnull() & raw.item.notnull()
    return raw.agg(
        events=raw.count(),
        user=raw.user.isnull().sum(),
        item=(raw.user.notnull() & raw.item.isnull()).sum(),
        at=(named & raw["at"].isnull()).sum(),
    )


def _clean(raw: ir.Table, options: InteractionsOptions) -> ir.Table:
    """Complete events, without exact repeats; with drop_repeats, the first event of each user and item."""
    complete = raw.drop_null()
    if options.drop_repeats:
        return complete.group_by("user", "item").agg(at=_["at"].min())
    return complete if options.time is None else complete.distinct()


def _held_out(options: InteractionsOptions) -> dict[str, Any]:
    """Whether some of the events of an item or user are held out; those are kept, however few they are."""
    return {"held_out": _.part.max() > TRAIN} if options.is_split else {}


def _is_frequent(counts: ir.Table, fewest: int | None, options: InteractionsOptions) -> Any:
    enough = counts["count"] >= fewest
    return enough | counts["held_out"] if options.is_split else enough


def _filtered(counts: ir.Table, items: ir.Table, options: InteractionsOptions) -> ir.Table:
    """One row: how many items and events there are, and how many the filters keep."""
    frequent = _is_frequent(counts, options.min_item_count, options)
    found = counts.agg(
        distinct=counts.count(),
        most=counts["count"].max(),
        counted=counts["count"].sum(),
        frequent=counts["count"].sum(where=frequent),
    )
    return found.cross_join(items.agg(items=items.count(), kept=items["count"].sum()))


def _kept_items(counts: ir.Table, options: InteractionsOptions) -> ir.Table:
    """The items that are kept, numbered by name for now."""
    kept = counts.filter(_is_frequent(counts, options.min_item_count, options))
    if options.max_names is not None:
        kept = kept.order_by(ibis.desc("count"), "item").limit(options.max_names)
    number = ibis.row_number().over(order_by="item").cast("int32")
    return kept.select("item", "count", number=number).order_by("number")


def _kept_users(kept: ir.Table, options: InteractionsOptions) -> ir.Table:
    counted = kept.group_by("user").agg(count=_.count(), **_held_out(options))
    return counted.filter(_is_frequent(counted, options.min_user_count, options)).order_by("user")


def _check_events(missing: dict[str, int], log: Log, options: InteractionsOptions) -> None:
    if not missing["events"] and log.seen.rated_low + log.seen.unrated:
        raise InputError(f"no event has a {options.rating!r} of at least {options.min_rating:g}; lower --min-rating")
    if not missing["events"]:
        raise InputError("the log holds no events; at least one is needed")
    complete = missing["events"] - missing["user"] - missing["item"] - missing["at"]
    if not complete and missing["at"]:
        shown = f"one is {log.seen.example!r:.80}; " if log.seen.unreadable else ""
        raise InputError(f"none of the times in column {options.time!r} can be read; {shown}{_allowed_times(options)}")
    if log.seen.unreadable > MAX_UNREADABLE_SHARE * log.seen.timed:
        raise InputError(
            f"{log.seen.unreadable:,} of {log.seen.timed:,} times in column {options.time!r} cannot be read, one is "
            f"{log.seen.example!r:.80}; {_allowed_times(options)}"
        )
    if not complete:
        what = "user" if missing["user"] >= missing["item"] else "item"
        raise InputError(f"all {missing['events']:,} events lack a user or an item; is --{what} the right column?")


def _allowed_times(options: InteractionsOptions) -> str:
    if options.time_format is not None:
        return f"they have to be written like --time-format {options.time_format!r}"
    return (
        "numbers, timestamps and ISO dates like 2020-12-31T23:59:59 are allowed; for others give "
        "--time-format '%d.%m.%Y'"
    )


def _check_items(filtered: dict[str, int], options: InteractionsOptions) -> None:
    if filtered["distinct"] < 2:
        raise InputError(f"the log holds {filtered['distinct']} distinct items; at least 2 are needed")
    if filtered["items"] < 2:
        raise InputError(
            f"{filtered['items']} of {filtered['distinct']:,} items are left by "
            f"min_item_count={options.min_item_count}, max_names={options.max_names}; at least 2 are needed "
            f"(the most frequent has {filtered['most']:,} events)"
        )


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _table(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(part, partitioning=None) for part in _parts(folder)])


def _only_row(folder: Path) -> dict[str, int]:
    (row,) = _table(folder).to_pylist()
    return {name: int(value or 0) for name, value in row.items()}
