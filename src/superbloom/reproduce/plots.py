"""The pictures of the report, as PNG: recall by label frequency (Figure 3), by time, by depth, and by α and m."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from superbloom.reproduce.cells import PAPER_PREFIX, SENSITIVITY_ALPHAS, SENSITIVITY_HASHES
from superbloom.reproduce.results import Results

BLUE, GREY, RED, GREEN = "#1f6f8b", "#9aa3a9", "#c8553d", "#6a994e"


def plots(results: Results) -> dict[str, bytes]:
    """Return the pictures for which cells are finished, by file name."""
    drawn = {"figure3.png": _deciles, "curves.png": _curves, "depth.png": _depth, "sensitivity.png": _sensitivity}
    found = {name: draw(results) for name, draw in drawn.items()}
    return {name: image for name, image in found.items() if image is not None}


def _picture(draw: Callable[[Any], None], width: float = 6.4, height: float = 3.6) -> bytes:
    """Return what `draw` draws on axes of this size in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format="png")
    pyplot.close(figure)
    return image.getvalue()


def _deciles(results: Results) -> bytes | None:
    """Draw Figure 3: recall@1 by label frequency."""
    if not results.has_all("superbloom", "baseline"):
        return None

    def draw(axes: Any) -> None:
        for name, colour in (("baseline", GREY), ("superbloom", BLUE)):
            deciles = results.first(name)["deciles"]
            places = [100 * (i + 1) / len(deciles) for i in range(len(deciles))]
            axes.plot(places, [100 * each["recall_at_1"] for each in deciles], "o-", color=colour, label=name)
        axes.set(xlabel="label frequency, percentile (most frequent first)", ylabel="recall@1, %", ylim=(0, None))
        axes.legend(frameon=False)

    return _picture(draw)


def _curves(results: Results) -> bytes | None:
    """Draw validation recall of the models of Table 2, or of text, against minutes."""
    names = ["superbloom", "baseline", *([results.sampled] if results.sampled else [])]
    if "superbloom" not in results:
        names = [name for name in results.cells if name.startswith(("hash", "baseline-h"))]
    names = [name for name in names if name in results]
    if not names:
        return None

    def draw(axes: Any) -> None:
        for name, colour in zip(names, (BLUE, GREY, RED, GREEN), strict=False):
            history = results.first(name)["history"]
            minutes = [point["seconds"] / 60 for point in history]
            axes.plot(minutes, [100 * point["recall_at_10"] for point in history], ".-", color=colour, label=name)
        yardstick = results.yardstick_recall.get("co-occurrence")
        if yardstick:
            axes.axhline(100 * yardstick["10"]["value"], color="black", linewidth=0.8, linestyle=":")
            axes.annotate("co-occurrence (test rows)", (0, 100 * yardstick["10"]["value"]), fontsize=8, va="bottom")
        axes.set(xlabel="minutes", ylabel="validation recall@10, %", ylim=(0, None), xlim=(0, None))
        axes.legend(frameon=False)

    return _picture(draw)


def _depth(results: Results) -> bytes | None:
    """Draw Table 3 as bars: unhashed and hashed, from a bag to a deep model."""
    names = ["baseline-bag", "baseline-l1", "baseline-deep"]
    names += ["superbloom-bag", "superbloom-set-l1", "superbloom-l1", "superbloom-wide-l1", "superbloom-deep"]
    if not any(name in results for name in names):
        return None

    def draw(axes: Any) -> None:
        for place, name in enumerate(names):
            for shift, prefix in ((-0.2, ""), (0.2, PAPER_PREFIX)):
                if prefix + name in results:
                    colour = BLUE if name.startswith("superbloom") else GREY
                    found = results.recall(prefix + name, 10)
                    reach = [[100 * (found["value"] - found["low"])], [100 * (found["high"] - found["value"])]]
                    hatch = "//" if prefix else None
                    axes.bar(place + shift, 100 * found["value"], 0.38, color=colour, hatch=hatch, edgecolor="white")
                    axes.errorbar(place + shift, 100 * found["value"], reach, color="black", linewidth=0.8)
        axes.set_xticks(range(len(names)), [name.replace("-", "\n", 1) for name in names], fontsize=8)
        axes.set(ylabel="recall@10, %")
        axes.set_title("hatched: inputs and outputs as in the paper", loc="left", fontsize=9)

    return _picture(draw, width=7.5)


def _sensitivity(results: Results) -> bytes | None:
    """Draw recall@10 against α for each m; all models have one size."""
    cells = results.sensitivity
    if not cells:
        return None

    def draw(axes: Any) -> None:
        for m, colour in zip(SENSITIVITY_HASHES, ("black", BLUE, GREEN, RED), strict=True):
            found = {alpha: name for (alpha, hashes), name in cells.items() if hashes == m}
            if found:
                shares = [results.recall(name, 10) for name in found.values()]
                reach = [[100 * abs(s["value"] - s[end]) for s in shares] for end in ("low", "high")]
                values = [100 * s["value"] for s in shares]
                axes.errorbar(list(found), values, reach, marker="o", color=colour, label=f"m={m}", capsize=2)
        axes.set_xscale("log")
        axes.set_xticks(SENSITIVITY_ALPHAS, [str(alpha) for alpha in SENSITIVITY_ALPHAS])
        axes.minorticks_off()
        axes.set(xlabel="α, ids per bucket", ylabel="recall@10, %", ylim=(0, None))
        axes.legend(frameon=False)

    return _picture(draw)
