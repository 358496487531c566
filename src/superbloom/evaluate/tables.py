"""Figures for people: the recall table, and the plot of recall by label frequency (Figure 3)."""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.table import Table


def recall_table(figures: dict[str, Any]) -> Table:
    """recall@k of the model and of the yardsticks, ± half of the 95 % interval. It fits 60 columns."""
    title = f"{figures['rows']:,} hidden elements of {figures['split']} rows;\n{rule(figures)}"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    ks = list(figures["recall"])
    for column in ("", *(f"recall@{k}" for k in ks)):
        table.add_column(column, justify="left" if not column else "right")
    for number, (name, recall) in enumerate(recall_rows(figures).items()):
        table.add_row(name, *(cell(recall[k]) for k in ks), style="" if number else "bold")
    return table


def recall_rows(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of the recall table. The first is the headline: all hidden elements, or content words of text.

    >>> found = {"hidden": 7, "recall": {}, "yardsticks": {"repetition": {}}}
    >>> [*recall_rows({"recall": {}, "content": found, "yardsticks": {"repetition": {}}})]
    ['this model, content words (7)', 'repetition, content words', 'this model', 'repetition']
    """
    rows: dict[str, dict[str, Any]] = {}
    if content := figures.get("content"):
        rows[f"this model, content words ({content['hidden']:,})"] = content["recall"]
        rows |= {f"{name}, content words": found for name, found in content["yardsticks"].items()}
    rows["this model"] = figures["recall"]
    rows |= {f"{name} alone": figures[name] for name in ("network", "memory") if name in figures}
    if "by sum" in figures:
        rows["the paper's sum"] = figures["by sum"]
    rows |= {f"{kind}s ({found['hidden']:,})": found for kind, found in figures.get("kinds", {}).items()}
    return rows | figures.get("yardsticks", {})


def rule(figures: dict[str, Any]) -> str:
    """What was done with the names of the context, in words.

    >>> rule({"filter_seen": True})
    'names of the context are left out'
    """
    return f"names of the context are {'left out' if figures.get('filter_seen') else 'included'}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(["", "recall@1"], [["this model", "0.500"]]))
    |  | recall@1 |
    | --- | --- |
    | this model | 0.500 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot_deciles(figures: dict[str, Any]) -> bytes:
    """A PNG of recall by label frequency, the most frequent labels first, as Figure 3 of the paper."""
    deciles = figures["deciles"]
    figure, axes = _subplots(figsize=(6, 3.6), layout="constrained")
    places = [10 * (i + 1) for i in range(len(deciles))]
    axes.plot(places, [decile["recall_at_10"] for decile in deciles], "o--", color="#b0b7bc", label="recall@10")
    axes.plot(places, [decile["recall_at_1"] for decile in deciles], "o-", color="#1f6f8b", label="recall@1")
    axes.set(xticks=places, xlabel="label frequency, percentile (most frequent first)", ylabel="recall", ylim=(0, None))
    axes.set_title(f"Recall by label frequency, {figures['rows']:,} {figures['split']} rows", loc="left", fontsize=10)
    return _png(figure, axes)


def cell(share: dict[str, float]) -> str:
    """A share ± half of its interval, as text.

    >>> cell({"value": 0.3, "low": 0.2189, "high": 0.3958})
    '.300 ±.088'
    """
    shown = (f"{value:.3f}".removeprefix("0") for value in (share["value"], (share["high"] - share["low"]) / 2))
    return " ±".join(shown)


def plot_calibration(figures: dict[str, Any]) -> bytes:
    """The reliability diagram: predicted probabilities of answers against the share that is right; a PNG."""
    bins = figures["calibration"]["bins"]
    predicted, observed = [each["predicted"] for each in bins], [each["observed"] for each in bins]
    figure, axes = _subplots(figsize=(4.2, 4), layout="constrained")
    limit = max(1e-6, *predicted, *observed)
    axes.plot([0, limit], [0, limit], "--", color="#b0b7bc", label="perfectly calibrated")
    axes.plot(predicted, observed, "o-", color="#1f6f8b", label="this model")
    axes.set(xlabel="predicted probability", ylabel="share that is right", xlim=(0, None), ylim=(0, None))
    axes.set_title(f"Calibration error {figures['calibration']['error']:.4f}", loc="left", fontsize=10)
    return _png(figure, axes)


def _subplots(**options: Any) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(**options)


def _png(figure: Any, axes: Any) -> bytes:
    """The finished figure as the bytes of a PNG."""
    from matplotlib import pyplot

    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format="png")
    pyplot.close(figure)
    return image.getvalue()
