"""Tables and pictures of benchmarks/speedrun.py's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.record import markdown

COLORS = {"α=4": "#1f6f8b", "α=10": "#d1495b", "unhashed, same width": "#7a7a7a", "unhashed, size of α=4": "#9ec5ab"}
COLORS["unhashed, size of α=10"] = "#e9c46a"


def tables(results: dict[str, Any]) -> dict[str, str]:
    found = {}
    if results["curves"]:
        found["when"] = when(results["curves"])
        found["recall"] = after(results["curves"])
    if results["changes"].get("runs"):
        found["changes"] = brought(results["changes"])
    if results["profile"]:
        found["profile"] = spent(results["profile"])
    return found


def when(curves: dict[str, Any]) -> str:
    """Minutes until each model passes the yardstick, and how far beyond it gets."""
    names = list(next(iter(curves.values()))["models"])
    rows = []
    for corpus, cells in curves.items():
        row = [f"{corpus} ({cells['yardstick']['10']:.3f})"]
        for name in names:
            cell = cells["models"].get(name, {})
            points = cell.get("history", [])
            passed = next((p["seconds"] / 60 for p in points if p["recall_at_10"] > cells["yardstick"]["10"]), None)
            if not points:
                row.append("–")
            elif passed is None:
                row.append(f"not in {points[-1]['seconds'] / 60:.0f}")
            else:
                row.append(f"{passed:.1f}")
        rows.append(row)
    return markdown(["corpus (yardstick's recall@10)", *names], rows)


def after(curves: dict[str, Any]) -> str:
    """recall@1/10/20 after so many minutes, on validation and test pages, and times the yardstick's recall@10."""
    rows = []
    for corpus, cells in curves.items():
        least = cells["yardstick"]
        (test, *_) = [a["test yardsticks"] for cell in cells["models"].values() for a in cell.get("after", {}).values()]
        for name, kind, place in (("co-occurrence", "yardstick", f"**{corpus}**"), ("co-occurrence, near", "near", "")):
            times = cells[kind]["10"] / least["10"]
            rows.append([place, name, "", "", triple(cells[kind]), f"{times:.2f}", triple(test[name])])
        for name, cell in cells["models"].items():
            for minutes, figures in cell.get("after", {}).items():
                times = figures["validation"]["10"] / least["10"]
                size = f"{cell['parameters'] / 1e6:.2f} M"
                recall = [triple(figures["validation"]), f"{times:.2f}", triple(figures["test"])]
                ended = figures.get("seconds", 60 * int(minutes)) / 60  # by itself, when validation stood still
                shown = minutes if ended > 0.95 * int(minutes) else f"{minutes}, ended after {ended:.0f}"
                rows.append(["", name, size, shown, *recall])
    header = ["corpus", "model", "parameters", "minutes", "validation recall@1 / 10 / 20", "× yardstick", "test"]
    return markdown(header, rows)


def triple(recall: dict[str, float]) -> str:
    return " / ".join(f"{recall[k]:.3f}".removeprefix("0") for k in ("1", "10", "20"))


def brought(changes: dict[str, Any]) -> str:
    runs = changes["runs"]
    rows = [["nothing / everything", *cells(runs.get("none")), *cells(runs.get("all"))]]
    for name in (name.removeprefix("only: ") for name in runs if name.startswith("only: ")):
        rows.append([name, *cells(runs[f"only: {name}"]), *cells(runs.get(f"all but: {name}"))])
    header = ["change", "alone: recall@1 / 10 / 20", "steps", "all but it: recall@1 / 10 / 20", "steps"]
    return markdown(header, rows)


def cells(run: dict[str, Any] | None) -> list[str]:
    """Recall and steps of a run, if it was measured."""
    return ["–", "–"] if run is None else [triple(run["validation"]), f"{run['steps']:,}"]


def spent(profile: dict[str, Any]) -> str:
    before, now = profile["before"], profile["after"]
    rows = [
        [part, f"{before['milliseconds'][part]:.1f}", f"{now['milliseconds'][part]:.1f}"]
        for part in now["milliseconds"]
    ]
    totals = [sum(one["milliseconds"].values()) for one in (before, now)]
    rows.append(["**a step**", *(f"**{total:.0f}**" for total in totals)])
    rows.append(["elements predicted in it", *(f"{one['targets']:,}" for one in (before, now))])
    each = (1000 * total / one["targets"] for total, one in zip(totals, (before, now), strict=True))
    rows.append(["microseconds an element predicted", *(f"{microseconds:.0f}" for microseconds in each)])
    table = markdown(["part, milliseconds", "before", "after"], rows)
    costly = "; ".join(f"{name.removeprefix('aten::')} {time:.1f}" for name, time in now["operators"].items())
    return f"{table}\n\nThe costliest operators after, in milliseconds of a step: {costly}."


def pictures(results: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not results["curves"]:
        return
    figure, axes = pyplot.subplots(1, len(results["curves"]), figsize=(13, 4.6), layout="constrained", squeeze=False)
    for axis, (corpus, cells) in zip(axes[0], results["curves"].items(), strict=True):
        for name, cell in cells["models"].items():
            points = [(point["seconds"] / 60, point["recall_at_10"]) for point in cell.get("history", [])]
            if points:
                style = {"color": COLORS.get(name), "linewidth": 2.2 if name.startswith("α") else 1.3}
                axis.plot(*zip(*points, strict=True), label=name, **style)
        least = cells["yardstick"]["10"]
        axis.axhline(least, color="black", linestyle="--", linewidth=1, label="co-occurrence")
        axis.axhline(1.3 * least, color="black", linestyle=":", linewidth=1, label="1.3 × co-occurrence")
        axis.axhline(cells["near"]["10"], color="#8d6e63", linestyle="-.", linewidth=1, label="co-occurrence, near")
        axis.set(xlabel="minutes on two cores", ylim=(0, None))
        axis.set_title(corpus, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("recall@10 on validation pages")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8, frameon=False
    )
    figure.savefig(folder / "speedrun.png", dpi=130)
