"""The pictures of the laboratory, as PNG: learning curves, the layer probe, Figure 3, and a phase diagram per claim.

A phase diagram shows where a claim begins to hold: the difference that it says is above zero, against α, the number of
names, the number of training rows, and the number of steps. Grey is below zero.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superbloom.evaluate import DECILES
from superbloom.reproduce.laboratory.cells import (
    ALPHA,
    ALPHAS,
    BASE,
    DEEP,
    DEPTHS,
    NEGATIVES,
    WORLDS,
    cell_name,
    num_names,
)
from superbloom.reproduce.laboratory.findings import (
    Findings,
    Terms,
    depth_terms,
    sampled_terms,
    size_terms,
)
from superbloom.reproduce.plots import BLUE, GREEN, GREY, RED

BASE_ALPHAS = tuple(sorted({1, ALPHA, *ALPHAS[BASE]}))
OF_RANK = {1: BLUE, 10: RED}  # the ranks of a phase diagram
WORLD_TERMS = Callable[[str, int], Terms]


def pictures(findings: Findings) -> dict[str, bytes]:
    """Return the pictures for which cells are finished, by file name."""
    drawn = {
        "curves.png": _curves(findings),
        "probe.png": _probe(findings),
        "figure3.png": _figure_3(findings),
        "phase-depth.png": _phases(findings, depth_terms, "depth's gain, hashed − unhashed"),
        "phase-size.png": _phases(findings, size_terms, "hashed − unhashed of its size"),
        "phase-sampled.png": _sampled(findings),
    }
    return {name: image for name, image in drawn.items() if image is not None}


def _figure(columns: int, width: float, height: float = 3.4) -> tuple[Any, Sequence[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), layout="constrained", squeeze=False)
    for one in axes[0]:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes[0]


def _png(figure: Any) -> bytes:
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, dpi=150, format="png")
    pyplot.close(figure)
    return image.getvalue()


def _curves(findings: Findings) -> bytes | None:
    """Draw validation recall by step: depths, hashed and not, under the best possible recall."""
    names = {(alpha, layers): cell_name(alpha=alpha, layers=layers) for alpha in (1, ALPHA) for layers in DEPTHS}
    names = {key: name for key, name in names.items() if name in findings}
    if not names or BASE not in findings.worlds:
        return None
    figure, axes = _figure(2, 11)
    for one, k in zip(axes, OF_RANK, strict=True):
        for (alpha, layers), name in names.items():
            steps, recall = findings.curve(name, k)
            colour = (BLUE, GREEN, RED, "black")[DEPTHS.index(layers)]
            style = "-" if alpha > 1 else ":"
            one.plot(steps, 100 * recall, style, color=colour, label=name)
        best = 100 * findings.worlds[BASE]["best"][str(k)]
        one.axhline(best, color=GREY, linewidth=1)
        one.annotate("best possible", (0, best), fontsize=8, va="bottom")
        one.set(xlabel="steps", ylabel=f"validation recall@{k}, %", ylim=(0, 102), xlim=(0, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return _png(figure)


def _probe(findings: Findings) -> bytes | None:
    """Draw the share of inputs whose identity can be read off each layer."""
    found = {
        (alpha, layers): [cell["probe"] for cell in findings.cells[name].values() if "probe" in cell]
        for alpha in BASE_ALPHAS
        for layers in DEPTHS[1:]
        if (name := cell_name(alpha=alpha, layers=layers)) in findings
    }
    found = {key: probes for key, probes in found.items() if probes}
    if not found:
        return None
    figure, (axes,) = _figure(1, 8)
    colours = dict(zip(BASE_ALPHAS, ("black", GREEN, "#e9a23b", BLUE, RED), strict=True))
    for (alpha, layers), probes in found.items():
        read = 100 * np.mean([own["read"] for own in probes], axis=0)
        style = {2: ":", DEEP: "o-", 8: "--"}[layers]
        axes.plot(range(len(read)), read, style, color=colours[alpha], label=cell_name(alpha=alpha, layers=layers))
        if layers == DEEP and alpha > 1:
            alone = 100 * np.mean([own["token alone"] for own in probes])
            axes.plot([0], [alone], "_", color=colours[alpha], markersize=14)
    axes.set(xlabel="layers that the input went through", ylabel="identity read, %", ylim=(0, 102))
    axes.set_title("bar at 0: the most a token says without context", loc="left", fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return _png(figure)


def _figure_3(findings: Findings) -> bytes | None:
    """Draw recall@1 by label frequency: hashed, unhashed of its size, and the best possible."""
    names = {name: colour for (name, _), colour in zip(size_terms(), (BLUE, GREY), strict=True)}
    if BASE not in findings.worlds or not all(name in findings for name in names):
        return None
    world = findings.worlds[BASE]
    tenths = np.array_split(np.argsort(-np.array(world["frequency"]), kind="stable"), DECILES)
    places = [100 * (i + 1) / DECILES for i in range(DECILES)]
    figure, (axes,) = _figure(1, 6.4)
    best = np.array(world["ranks"]) < 1
    axes.plot(places, [100 * best[tenth].mean() for tenth in tenths], ":", color="black", label="best possible")
    for name, colour in names.items():
        hits = np.mean([findings.hits(name, seed, 1) for seed in findings.cells[name]], axis=0)
        axes.plot(places, [100 * hits[tenth].mean() for tenth in tenths], "o-", color=colour, label=name)
    axes.set(xlabel="label frequency, percentile (most frequent first)", ylabel="recall@1, %", ylim=(0, 102))
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def _phases(findings: Findings, terms_of: WORLD_TERMS, title: str) -> bytes | None:
    """Draw a claim's difference against α, names, training rows and steps."""
    worlds = {name: options for name, options in WORLDS.items() if name != "two lists"}
    by_names = {num_names(name): terms_of(name, ALPHA) for name, own in worlds.items() if own.train_rows is None}
    by_rows = {
        own.train_rows or own.rows: terms_of(name, ALPHA)
        for name, own in worlds.items()
        if own.countries == WORLDS[BASE].countries
    }
    panels = {
        **{
            f"α ({num_names(world):,} names)": {alpha: terms_of(world, alpha) for alpha in sorted({ALPHA, *alphas})}
            for world, alphas in ALPHAS.items()
        },
        f"names (α={ALPHA})": by_names,
        f"training rows (α={ALPHA})": by_rows,
    }
    figure, axes = _figure(5, 15)
    drawn = [_panel(one, findings, label, terms) for one, (label, terms) in zip(axes, panels.items(), strict=False)]
    drawn.append(_steps(axes[4], findings, terms_of(BASE, ALPHA)))
    axes[0].set_ylabel(f"{title}, points")
    figure.suptitle("above the line, the claim holds; bars are 95 % intervals", x=0.01, ha="left", fontsize=9)
    if drawn[0]:
        axes[0].legend(frameon=False, fontsize=8)
    return _png(figure) if any(drawn) else None


def _panel(axes: Any, findings: Findings, label: str, terms: dict[Any, Terms]) -> bool:
    """Draw one difference per place with its interval; return whether there was any."""
    places = sorted(terms)
    drawn = False
    for (k, colour), shift in zip(OF_RANK.items(), (0.97, 1.03), strict=True):
        found = {place: own for place in places if (own := findings.difference(terms[place], k)) is not None}
        if found:
            values = np.array([[100 * own.value, 100 * own.low, 100 * own.high] for own in found.values()]).T
            reach = [values[0] - values[1], values[2] - values[0]]
            at = [place * shift for place in found]
            axes.errorbar(at, values[0], reach, marker="o", color=colour, capsize=2, label=f"recall@{k}")
            drawn = True
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=8)
    axes.minorticks_off()
    axes.set(xlabel=label, xlim=(places[0] / 1.3, places[-1] * 1.3))
    _shade(axes)
    if not drawn:
        axes.annotate("not trained yet", (0.5, 0.6), xycoords="axes fraction", ha="center", fontsize=8)
    return drawn


def _steps(axes: Any, findings: Findings, terms: Terms) -> bool:
    """Draw the difference of validation recalls by step."""
    axes.set(xlabel=f"steps (α={ALPHA}, validation)")
    if not all(name in findings for name, _ in terms):
        return False
    for k, colour in OF_RANK.items():
        curves = [(sign, *findings.curve(name, k)) for name, sign in terms]
        length = min(len(steps) for _, steps, _ in curves)
        difference = sum(sign * recall[:length] for sign, _, recall in curves)
        axes.plot(curves[0][1][:length], 100 * difference, color=colour)
    _shade(axes)
    return True


def _shade(axes: Any) -> None:
    low, high = axes.get_ylim()
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(min(low, -1), 0, color=GREY, alpha=0.15, linewidth=0)
    axes.set_ylim(min(low, -1), max(high, 1))


def _sampled(findings: Findings) -> bytes | None:
    """Draw how much better the full softmax is than sampled ones, by share of negatives, and by step."""
    figure, axes = _figure(3, 11)
    drawn = []
    for one, log_q in zip(axes, (True, False), strict=False):
        terms = {100 * share: sampled_terms(share, log_q) for share in NEGATIVES}
        drawn.append(_panel(one, findings, f"negatives, % of names, {'with' if log_q else 'without'} logQ", terms))
    drawn.append(_steps(axes[2], findings, sampled_terms(NEGATIVES[0], True)))
    axes[2].set(xlabel=f"steps ({NEGATIVES[0]:.1%} negatives with logQ, validation)")
    axes[0].set_ylabel("full − sampled, points")
    figure.suptitle("above the line, the claim holds; bars are 95 % intervals", x=0.01, ha="left", fontsize=9)
    if drawn[0]:
        axes[0].legend(frameon=False, fontsize=8)
    return _png(figure) if any(drawn) else None
