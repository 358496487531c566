"""The steps on events, written once as Ibis expressions and run by either engine.

    clean     names become text; events without user, item or time are left out; exact repeats count once
    filter    rare items, items beyond the most frequent, and users with too few events are left out
    sort      by user, then time, then item; without times the events stay in the order of the log

Users and items are numbers in the order of their names, or names (tables.py). What is left is read in batches into
arrays that lie in files of the temporary folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
from ibis import _ as deferred

from superbloom.config import InteractionsOptions
from superbloom.errors import InputError
from superbloom.prepare.interactions.columns import TRAIN, Seen
from superbloom.prepare.interactions.engines import Engine
from superbloom.prepare.interactions.tables import Log
from superbloom.prepare.scratch import Growing, mapped_text
from superbloom.progress import Watch

MAX_UNREADABLE_SHARE = 0.1  # if a larger share of the times cannot be read, the log is refused


@dataclass(frozen=True)
class Events:
    """The sorted events of a log.

    users, lengths: the users that are kept, by name, and how many events each has. ids: the item of each event, a place
    in items, which are sorted by name. times: those of the events, for split="time". parts: what each event is for, if
    files say it (columns.py).
    """

    folder: Path
    seen: Seen
    counts: dict[str, int]  # of events and items at each step
    users: pa.LargeStringArray
    lengths: np.ndarray
    items: pa.LargeStringArray
    ids: np.ndarray
    times: np.ndarray | None
    parts: np.ndarray | None


def sort_events(log: Log, options: InteractionsOptions, engine: Engine, folder: Path, watch: Watch) -> Events:
    """Clean, filter and sort the events of a log."""
    with watch("counting items", None, False):
        raw = raw_events(engine.read(log.folder), log, options.is_split)
        missing = only_row(engine.batches(count_missing(raw), "missing"))
        check_events(missing, log, options)
        events = raw.drop_null()
        if options.drop_repeats:  # the first event of each user and item
            events = engine.keep(events.group_by("user", "item").agg(at=deferred["at"].min()), "events")
        elif options.time is not None:
            events = engine.distinct(events, "events")
        counts = engine.keep(events.group_by("item").agg(count=deferred.count(), **_held_out(options)), "counts")
        items = engine.keep(_kept_items(counts, options), "items")
        filtered = only_row(engine.batches(_filtered(counts, items, options), "filtered"))
    _check_items(filtered, options)
    with watch("counting users", None, False):
        part = ["part"] if options.is_split else []
        kept = events.join(items, "item").select("user", "at", "number", *part)
        users = engine.keep(_kept_users(kept, options), "users")
    with watch("ordering events", None, False):
        ordered = kept.semi_join(users, "user").order_by("user", *part, "at", "number")
        wanted = ("number", "at") if options.split == "time" else ("number", *part)
        arrays = _read_events(engine.batches(ordered.select(*wanted), "sorted"), log, folder)
        by_name = {"user": users.order_by("user"), "item": items.order_by("item")}
        names = {
            role: _read_names(engine.batches(by_name[role], f"sorted-{role}s"), role, log, folder) for role in by_name
        }
    (users_kept, lengths), (items_kept, _) = names["user"], names["item"]
    return Events(folder, log.seen, missing | filtered, users_kept, lengths, items_kept, *arrays)


def _read_events(
    batches: Iterable[pa.RecordBatch], log: Log, folder: Path
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The item of each event; its time, and what it is for, if the batches have them."""
    ids, parts = Growing(folder / "ids", np.int32), Growing(folder / "parts", np.int8)
    times = Growing(folder / "times", np.float64 if log.seen.fractions else np.int64)
    for batch in batches:
        ids.add(batch["number"].to_numpy())
        if "at" in batch.schema.names:
            times.add(_time_numbers(batch["at"]))
        if "part" in batch.schema.names:
            parts.add(batch["part"].to_numpy())
    return ids.array(), times.array() if times.size else None, parts.array() if parts.size else None


def _time_numbers(times: pa.Array) -> np.ndarray:
    times = times.cast(pa.timestamp("us")) if pa.types.is_date(times.type) else times
    return (times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times).to_numpy()


def _read_names(
    batches: Iterable[pa.RecordBatch], role: str, log: Log, folder: Path
) -> tuple[pa.LargeStringArray, np.ndarray]:
    """The names of users or items, and how many events each has."""
    counts = Growing(folder / f"{role}-counts", np.int64)

    def names() -> Iterator[pa.Array]:
        for batch in batches:
            counts.add(batch["count"].to_numpy())
            yield batch[role] if log.names is None else log.names[role].take(batch[role])

    return mapped_text(folder / f"{role}-names", names()), counts.array()


def raw_events(table: ir.Table, log: Log, is_split: bool) -> ir.Table:
    """user and item, and at: what orders the events of a user. With is_split also what each is for."""
    if log.names is not None:
        return table if is_split else table.drop("part")
    columns = log.columns
    return table.select(user=_text(table[columns.user]), item=_text(table[columns.item]), at=table[columns.time])


def _text(column: Any) -> Any:
    return column.nullif("") if column.type().is_string() else column.cast("string")


def count_missing(raw: ir.Table) -> ir.Table:
    """One row: the number of events, and of those that lack a user, an item or a time."""
    named = raw.user.notnull() & raw.item.notnull()
    return raw.agg(
        events=raw.count(),
        user=raw.user.isnull().sum(),
        item=(raw.user.notnull() & raw.item.isnull()).sum(),
        at=(named & raw["at"].isnull()).sum(),
    )


def _held_out(options: InteractionsOptions) -> dict[str, Any]:
    """Whether some of the events of an item or user are held out; those are kept, however few they are."""
    return {"held_out": deferred.part.max() > TRAIN} if options.is_split else {}


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
    return kept.select("item", "count", number=number)


def _kept_users(kept: ir.Table, options: InteractionsOptions) -> ir.Table:
    counted = kept.group_by("user").agg(count=deferred.count(), **_held_out(options))
    return counted.filter(_is_frequent(counted, options.min_user_count, options))


def check_events(missing: dict[str, int], log: Log, options: InteractionsOptions) -> None:
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


def only_row(batches: Iterable[pa.RecordBatch]) -> dict[str, int]:
    (row,) = (row for batch in batches for row in batch.to_pylist())
    return {name: int(value or 0) for name, value in row.items()}
