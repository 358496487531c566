"""Tables of benchmarks/recommend.py's results."""

from __future__ import annotations

from typing import Any

from record import markdown

# What is compared, and published full-ranking figures of the same files: HR@10, NDCG@10.
TITLES = {
    "ml-1m": "ML-1M (3,416 items)",
    "beauty": "Beauty (54,542 items)",
    "nowplaying": "Nowplaying (60,416 items)",
    "book-crossing": "Book-Crossing (340,556 items)",
}
PUBLISHED = {
    "ml-1m": {
        "BERT4Rec": (".2821–.2921", ".1516–.1618"),
        "SASRec": (".2392", ".1259"),
        "gSASRec": (".3003", ".1726"),
        "SASRec, full cross-entropy": (".3152", ".1821"),
    },
    "beauty": {
        "BERT4Rec": (".0338", ".0187"),
        "SASRec": (".0246", ".0126"),
        "SASRec, full cross-entropy": (".0533", ".0327"),
    },
}
NAMES = {"bert4rec": "RecTools BERT4Rec", "sasrec": "RecTools SASRec"}
SESSIONS = "nowplaying"  # asked for P@20 and MRR@20
KINDS = ("old", "new")  # items, as the extended model sees them


def tables(results: dict[str, Any]) -> dict[str, str]:
    found = {}
    if results["sets"]:
        found["next items"] = compared(results, ("ml-1m", "beauty", "book-crossing"), ("recall", "ndcg"), "10")
        found["sessions"] = compared(results, (SESSIONS,), ("recall", "mrr"), "20")
    if results["extend"]:
        found["extend"] = extended(results["extend"])
    if results["prepare"]:
        found["prepare"] = prepared(results["prepare"])
    if results["engines"]:
        rows = [[engine, f"`{figures['fingerprint']}`"] for engine, figures in results["engines"].items()]
        found["engines"] = markdown(["engine", "fingerprint of names and rows"], rows)
    return found


def compared(results: dict[str, Any], sets: tuple[str, ...], metrics: tuple[str, str], k: str) -> str:
    """Ours, the peer's and the published figures of each set."""
    rows = []
    for name in sets:
        title = f"**{TITLES[name]}**"
        for model, figures in PUBLISHED.get(name, {}).items():
            rows.append([title, f"published: {model}", *figures, "", "", "", "", ""])
            title = ""
        for kind in ("peers", "sets"):
            for label, cell in results[kind].get(name, {}).items():
                rows.append([title, *row(label, cell, metrics, k)])
                title = ""
    names = {"recall": "HR" if metrics[1] == "ndcg" else "P", "ndcg": "NDCG", "mrr": "MRR"}
    header = ["set", "model", *(f"{names[metric]}@{k}" for metric in metrics)]
    return markdown([*header, "parameters", "minutes", "CPU minutes", "steps", "peak GB"], rows)


def row(label: str, cell: dict[str, Any], metrics: tuple[str, str], k: str) -> list[str]:
    model, _, *options = label.split(", ")
    shown = ", ".join([NAMES.get(model, model.replace("alpha", "α")), *options])
    if "error" in cell:
        return [shown, f"– ({cell['error']})", *[""] * 6]
    values = [cell[metric][k] for metric in metrics]
    figures = [f"{value['value'] if isinstance(value, dict) else value:.4f}".removeprefix("0") for value in values]
    size, times = f"{cell['parameters'] / 1e6:.2f} M", [f"{cell[part]:.1f}" for part in ("minutes", "CPU minutes")]
    return [shown, *figures, size, *times, f"{cell['steps']:,}", f"{cell['training peak GB']:.2f}"]


def extended(found: dict[str, Any]) -> str:
    rows = []
    for state in ("before", "extended", "continued on the newer log", "trained anew"):
        figures = [f"{found[state][kind]:.4f}".removeprefix("0") if kind in found[state] else "–" for kind in KINDS]
        rows.append([state, *figures])
    asked = found["extended"]["new asked"]
    return markdown(["HR@10 where what is asked is", "an old item", f"a new item ({asked:,} rows)"], rows)


def prepared(found: dict[str, Any]) -> str:
    rows = []
    for kind, cell in found.items():
        ours = cell["superbloom"]
        rows.append([kind, "superbloom prepare interactions", f"{ours['seconds']:.1f}", "", f"{ours['peak GB']:.2f}"])
        if "rectools" in cell:
            theirs = cell["rectools"]
            times = [
                f"{theirs['read seconds'] + theirs['construct seconds']:.1f}",
                f"{theirs['construct seconds']:.1f}",
            ]
            rows.append([kind, "RecTools: read, Dataset.construct", *times, f"{theirs['peak GB']:.2f}"])
    return markdown(["file", "what", "seconds, reading included", "without reading", "peak GB"], rows)
