"""Interaction logs whose corpus a few lines of plain Python know."""

from collections import Counter, defaultdict
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from superbloom.corpus import Corpus, split_of

LOOSE = {"min_item_count": 1, "min_user_count": 1}


def described(corpus: Corpus) -> dict:
    """A corpus as plain lists."""
    table = corpus.sequences
    return {
        "names": corpus.vocab.names(range(corpus.num_ids)),
        "counts": corpus.vocab.counts.tolist(),
        "rows": {key: corpus.vocab.names(corpus.row(number)) for number, key in enumerate(table["key"].to_pylist())},
        "places": list(zip(*(table[name].to_pylist() for name in ("split", "valid_from", "test_from")), strict=True)),
        "dropped": corpus.info["dropped"],
    }


def reference(
    events: list[tuple],
    *,
    timed: bool = True,
    min_item_count: int = 5,
    min_user_count: int = 2,
    max_names: int | None = None,
    split: str = "last",
    drop_repeats: bool = False,
) -> dict | None:
    """The same of (user, item, time) events, the slow way; None if fewer than two items are left."""
    dropped: Counter = Counter()
    whole = []
    for place, (user, item, time) in enumerate(events):
        if not user:
            dropped["without a user"] += 1
        elif not item:
            dropped["without an item"] += 1
        elif timed and time is None:
            dropped["without a time"] += 1
        else:
            whole.append((user, time if timed else place, item))
    kept = sorted(set(whole), key=lambda event: (event[0], event[1], event[2].encode()))
    if drop_repeats:
        seen: set = set()
        kept = [e for e in kept if not ((e[0], e[2]) in seen or seen.add((e[0], e[2])))]
    dropped["repeated"] = len(whole) - len(kept)

    def cut(reason: str, keep) -> None:
        nonlocal kept
        before, kept = len(kept), [event for event in kept if keep(event)]
        dropped[reason] = before - len(kept)

    counts = Counter(item for *_, item in kept)
    cut(f"of items with fewer than {min_item_count} events", lambda event: counts[event[2]] >= min_item_count)
    ranked = sorted({item for *_, item in kept}, key=lambda item: (-counts[item], item.encode()))
    chosen = set(ranked[:max_names])
    cut("of items beyond the most frequent", lambda event: event[2] in chosen)
    if len(chosen) < 2:
        return None
    users = Counter(user for user, *_ in kept)
    cut(f"of users with fewer than {min_user_count} events", lambda event: users[event[0]] >= min_user_count)
    left = Counter(item for *_, item in kept)
    if len(left) < 2:
        return None
    rows: dict = defaultdict(list)
    for event in sorted(kept, key=lambda event: (event[0].encode(), event[1], event[2].encode())):
        rows[event[0]].append(event)
    times = sorted(time for _, time, _ in kept)
    places = []
    for user, row in rows.items():
        n = len(row)
        if split == "last":
            places.append((0, n - 2, n - 1) if n >= 3 else (0, n, n))
        elif split == "user":
            code = int(split_of([user])[0])
            places.append((code, *{0: (n, n), 1: (n - 1, n), 2: (n - 1, n - 1)}[code]))
        else:
            valid, test = times[len(times) * 855 // 1000], times[len(times) * 9 // 10]
            places.append((0, sum(e[1] < valid for e in row), sum(e[1] < test for e in row)))
    names = sorted(left, key=lambda item: (-left[item], item.encode()))
    return {
        "names": names,
        "counts": [left[name] for name in names],
        "rows": {user: [item for *_, item in row] for user, row in rows.items()},
        "places": places,
        "dropped": {reason: count for reason, count in dropped.items() if count},
    }


def table(events: list[tuple]) -> pa.Table:
    users, items, times = zip(*events, strict=True)
    columns = {"user_id": pa.array(users, pa.string()), "item_id": pa.array(items, pa.string())}
    return pa.table(columns | {"ts": pa.array(times, pa.int64())})


def log_of(num_users: int = 40, num_items: int = 25, events: int = 600, seed: int = 0) -> list[tuple]:
    """Events of users u0…, items i0… and times with ties and a few repeats."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(num_users, size=events), (num_items * rng.random(events) ** 2).astype(int)
    times = 1_600_000_000 + rng.integers(0, 200, size=events)
    return [(f"u{u}", f"i{i}", t) for u, i, t in zip(users.tolist(), items.tolist(), times.tolist(), strict=True)]


LOG = log_of()


def lines(separator: str, header: str = "", quote: str = "", events: list[tuple] = LOG) -> str:
    rows = (separator.join(f"{quote}{value}{quote}" for value in event) for event in events)
    return header + "".join(f"{row}\n" for row in rows)


BY_NUMBER = {"user": 0, "item": "1", "time": 2}


def utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


TEXTS = {
    "csv": (lines(",", "user_id,item_id,ts\n"), {"time": "ts"}),
    "tsv": (lines("\t", "user_id\titem_id\tts\n"), {"time": "ts"}),
    "quoted": (lines(";", '"User-ID";"ISBN";"ts"\n', '"'), {"user": "User-ID", "item": "ISBN", "time": "ts"}),
    "quoted tsv": (lines("\t", '"user_id"\t"item_id"\t"ts"\n', '"'), {"time": "ts"}),
    "inter": (lines("\t", "user_id:token\titem_id:token\tts:float\n"), {"time": "ts"}),
    "colons": (lines("::"), BY_NUMBER),
    "spaces": (lines("  "), BY_NUMBER),
    "no header": (lines(","), BY_NUMBER),
    "windows": ("\ufeff" + lines(",", "user_id,item_id,ts\n").replace("\n", "\r\n"), {"time": "ts"}),
    "no last line end": (lines(",", "user_id,item_id,ts\n").rstrip("\n"), {"time": "ts"}),
    "other columns": (
        "title,user_id,ts,item_id\n" + "".join(f'"a ""b"",\nc",{u},{t},{i}\n' for u, i, t in LOG),
        {"time": "ts"},
    ),
    "seconds with fractions": (
        "user_id,item_id,ts\n" + "".join(f"{u},{i},{t / 8}\n" for u, i, t in LOG),
        {"time": "ts"},
    ),
    "ISO": ("user_id,item_id,ts\n" + "".join(f"{u},{i},{utc(t)}\n" for u, i, t in LOG), {"time": "ts"}),
    "ISO in zones": (
        "user_id,item_id,ts\n"
        + "".join(f"{u},{i},{utc(t + 3600 * (n % 2))}{['Z', '+01:00'][n % 2]}\n" for n, (u, i, t) in enumerate(LOG)),
        {"time": "ts"},
    ),
}
