"""Tables of benchmarks/recommend.py's results, and which goals they meet."""

from __future__ import annotations

from typing import Any

from tools.record import markdown

# What is compared, and published full-ranking figures of the same files: recall@10 (HR@10), NDCG@10.
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
SESSIONS = "nowplaying"  # asked for recall@20 and MRR@20
KINDS = ("old", "new")  # items, as the extended model sees them
BEST_BERT4REC = 0.2921  # of ML-1M's rows, recall@10
# BERT4Rec's item embedding of Beauty, of its authors' width 64; without its layers.
BERT4REC_PARAMETERS = 54_542 * 64
MEMORY_ROLES = {"command": "the command", "driver": "driver's JVM", "executor": "executor's JVM"}
MOST_GB = 1.2  # to prepare ten million events
LARGE = {"beauty": ("recall", "10"), "nowplaying": ("recall", "20"), "book-crossing": ("recall", "10")}  # ≥ 50K items


def tables(results: dict[str, Any]) -> dict[str, str]:
    found = {}
    if results["sets"]:
        found["goals"] = goals(results)
        found["next items"] = compared(results, ("ml-1m", "beauty"), ("recall", "ndcg"), "10")
        found["sessions"] = compared(results, (SESSIONS,), ("recall", "mrr"), "20")
        found["sets"] = compared(results, ("book-crossing",), ("recall", "ndcg"), "10")
    if results["extend"]:
        found["extend"] = extended(results["extend"])
    if results["prepare"]:
        found["prepare"] = prepared(results["prepare"])
    if results["engines"]:
        rows = [[engine, f"`{figures['fingerprint']}`"] for engine, figures in results["engines"].items()]
        found["engines"] = markdown(["engine", "fingerprint of names and rows"], rows)
    if results["cluster"]:
        found["cluster"] = on_a_cluster(results["cluster"])
    return found


def compared(results: dict[str, Any], sets: tuple[str, ...], metrics: tuple[str, str], k: str) -> str:
    """Ours, the peer's and the published figures of each set."""
    rows = []
    for name in sets:
        title = f"**{TITLES[name]}**"
        for model, figures in PUBLISHED.get(name, {}).items():
            rows.append([title, f"published: {model}", *figures, "", "", "", "", ""])
            title = ""
        if cell := results["popular"].get(name):
            rows.append([title, "popularity", *(share(cell[metric][k]) for metric in metrics), "", "", "", "", ""])
            title = ""
        for kind in ("peers", "sets"):
            for label, cell in sorted(results[kind].get(name, {}).items(), key=lambda one: alpha_of(one[0])):
                rows.append([title, *row(label, cell, metrics, k)])
                title = ""
    names = {"recall": "recall", "ndcg": "NDCG", "mrr": "MRR"}
    header = ["set", "model", *(f"{names[metric]}@{k}" for metric in metrics)]
    return markdown([*header, "parameters", "minutes", "CPU minutes", "steps", "peak GB"], rows)


def row(label: str, cell: dict[str, Any], metrics: tuple[str, str], k: str) -> list[str]:
    model, _, *options = label.split(", ")
    shown = ", ".join([NAMES.get(model, model.replace("alpha", "α")), *options])
    if "error" in cell:
        return [shown, f"– ({cell['error']})", *[""] * 6]
    values = [cell[metric][k] for metric in metrics]
    figures = [share(value) for value in values]
    size, times = f"{cell['parameters'] / 1e6:.2f} M", [f"{cell[part]:.1f}" for part in ("minutes", "CPU minutes")]
    return [shown, *figures, size, *times, f"{cell['steps']:,}", f"{cell['training peak GB']:.2f}"]


def share(value: Any) -> str:
    return f"{value['value'] if isinstance(value, dict) else value:.4f}".removeprefix("0")


def alpha_of(label: str) -> int:
    """0 for a peer.

    >>> [alpha_of(label) for label in ("alpha=10, 8 min", "sasrec, 8 min")]
    [10, 0]
    """
    return int(label.split(",")[0].removeprefix("alpha=")) if label.startswith("alpha=") else 0


def goals(results: dict[str, Any]) -> str:
    """What was wanted, what was found, and by how much it is met or missed."""
    rows = []
    ours = {(name, alpha_of(label)): cell for name, cells in results["sets"].items() for label, cell in cells.items()}
    for alpha, slack in ((1, 0.03), (4, 0.10)):
        if cell := ours.get(("ml-1m", alpha)):
            wanted, found = (1 - slack) * BEST_BERT4REC, cell["recall"]["10"]["value"]
            beside = f"{found / BEST_BERT4REC - 1:+.1%} against BERT4Rec"
            what = f"ML-1M, α={alpha}: recall@10 within {slack:.0%} of BERT4Rec's {share(BEST_BERT4REC)}"
            rows.append([what, f"≥ {share(wanted)}", share(found), verdict(found >= wanted, beside)])
    if cell := ours.get(("beauty", 10)):
        wanted, found = float(PUBLISHED["beauty"]["BERT4Rec"][0]), cell["recall"]["10"]["value"]
        beside = f"{found / wanted - 1:+.1%}"
        above = "Beauty, α=10: recall@10 above BERT4Rec's"
        rows.append([above, f"> {share(wanted)}", share(found), verdict(found > wanted, beside)])
        size, most = cell["parameters"], BERT4REC_PARAMETERS / 4
        limits = [f"≤ {most / 1e6:.2f} M", f"{size / 1e6:.2f} M"]
        of_theirs = f"{size / BERT4REC_PARAMETERS:.1%} of its item embedding"
        rows.append(["… with a quarter of its parameters", *limits, verdict(size <= most, of_theirs)])
    for name, (metric, k) in LARGE.items():
        theirs = [cell[metric][k] for cell in results["peers"].get(name, {}).values() if "error" not in cell]
        if theirs and (name, 10) in ours:
            best, found = max(theirs), ours[name, 10][metric][k]["value"]
            what = f"{TITLES[name]}, α=10: ahead of RecTools in equal time, recall@{k}"
            rows.append([what, f"> {share(best)}", share(found), verdict(found > best, f"{found / best:.1f} times")])
    if cell := results["prepare"].get("csv"):
        peak, seconds = cell["superbloom"]["peak GB"], cell["superbloom"]["CPU seconds"]
        limit = f"{peak / MOST_GB:.0%}"
        rows.append(
            ["preparing 10 M events: memory", f"< {MOST_GB} GB", f"{peak:.2f} GB", verdict(peak < MOST_GB, limit)]
        )
        if "before" in cell:
            ratio = cell["before"]["CPU seconds"] / seconds
            half = [f"≤ {cell['before']['CPU seconds'] / 2:.1f} CPU s", f"{seconds:.1f} CPU s"]
            rows.append(["… twice as fast as before", *half, verdict(ratio >= 2, f"{ratio:.2f} times as fast")])
        if "rectools" in cell:
            construct = cell["rectools"]["CPU construct seconds"]
            ten = [f"≤ {construct / 10:.1f} CPU s", f"{seconds:.1f} CPU s"]
            times = f"{construct / seconds:.2f} times as fast"
            what = "… ten times as fast as Dataset.construct"
            rows.append([what, *ten, verdict(seconds <= construct / 10, times)])
    return markdown(["goal", "wanted", "found", ""], rows)


def verdict(met: bool, beside: str) -> str:
    return f"{'met' if met else '**missed**'}: {beside}"


def extended(found: dict[str, Any]) -> str:
    rows = []
    for state in ("before", "extended", "continued on the newer log", "trained from scratch"):
        figures = [f"{found[state][kind]:.4f}".removeprefix("0") if kind in found[state] else "–" for kind in KINDS]
        rows.append([state, *figures])
    asked = found["extended"]["new asked"]
    return markdown(["recall@10 of", "old items", f"new items ({asked:,} rows)"], rows)


def prepared(found: dict[str, Any]) -> str:
    rows = []
    for kind, cell in found.items():
        for version, what in (("superbloom", ""), ("before", ", names numbered last")):
            if ours := cell.get(version):
                times = [f"{ours['seconds']:.1f}", f"{ours['CPU seconds']:.1f}", f"{ours['peak GB']:.2f}"]
                rows.append([kind, f"superbloom prepare interactions{what}", *times])
        if "rectools" in cell:
            theirs = cell["rectools"]
            for part, what in (("read", "pandas reads it"), ("construct", "RecTools' Dataset.construct")):
                times = [f"{theirs[f'{part} seconds']:.1f}", f"{theirs[f'CPU {part} seconds']:.1f}"]
                rows.append([kind, what, *times, f"{theirs['peak GB']:.2f}" if part == "construct" else ""])
    return markdown(["file", "what", "seconds", "CPU seconds", "peak GB"], rows)


def on_a_cluster(found: dict[str, Any]) -> str:
    rows = []
    for engine, cell in found.items():
        peaks = [f"{cell['peak GB'][role]:.2f}" if role in cell["peak GB"] else "–" for role in MEMORY_ROLES]
        rows.append(
            [
                engine,
                f"{cell['CPU seconds']:.0f}",
                *peaks,
                f"{cell['temporary GB']:.2f}",
                f"`{cell['fingerprint'][:16]}…`",
            ]
        )
    roles = [f"{name}, GB" for name in MEMORY_ROLES.values()]
    return markdown(["engine", "CPU seconds", *roles, "temporary files, GB", "fingerprint"], rows)
