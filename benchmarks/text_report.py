"""Tables and the picture of benchmarks/text.py's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.speedrun_report import triple
from tools.record import markdown

# Table 5 of the paper: recall@1 / 10 / 20 in percent, on its own text with twelve layers and a million names.
PAPER = {
    "baseline-h64": ("62.6M", ".284 / .449 / .486"),
    "hash40-h512": ("62.3M", ".317 / .483 / .529"),
    "baseline-h256": ("254.4M", ".372 / .574 / .633"),
    "hash20-h1024": ("246.3M", ".392 / .585 / .645"),
}
# Figure 5: what the paper's largest hashed model answers, mask by mask.
FIGURE_5 = {
    "Miles Davis is a Jazz musician, he is similar to [MASK].": [
        "miles_davis john_coltrane charlie_parker thelonious_monk dizzy_gillespie bill_evans billie_holiday "
        "duke_ellington humans_is louis_armstrong"
    ],
    "Empire state building is an iconic site of [MASK1] , it is close to [MASK2] .": [
        "the_city new_york lower_manhattan manhattan the_neighborhood downtown wall_street the_area harlem "
        "architecture",
        "central_park city_hall times_square wall_street union_station broadway lower_manhattan the_pentagon "
        "fifth_avenue carnegie_hall",
    ],
}
COLORS = ("#9aa5b1", "#d1495b", "#4d5b6a", "#1f6f8b")


def tables(results: dict[str, Any]) -> dict[str, str]:
    found = {}
    if results["models"]:
        found |= {"recall": recall(results["models"]), "kinds": kinds(results["models"])}
        found |= {"deciles": deciles(results["models"]), "examples": examples(results["models"])}
    if results["throughput"]:
        found["throughput"] = throughput(results["throughput"])
    return found


def recall(models: dict[str, Any]) -> str:
    rows = []
    for (name, cell), (paper, (size, theirs)) in zip(models.items(), PAPER.items(), strict=False):
        test = cell["test"]["recall"]
        low, high = test["10"]["low"], test["10"]["high"]
        ours = triple({k: share["value"] for k, share in test.items()})
        parameters = f"{cell['parameters'] / 1e6:.2f} M"
        rows.append([name, parameters, f"{cell['steps']:,}", ours, f"{low:.3f}–{high:.3f}", paper, size, theirs])
    header = [
        "model",
        "parameters",
        "steps",
        "test recall@1 / 10 / 20",
        "recall@10, 95 %",
        "stands for",
        "parameters",
        "Table 5",
    ]
    return markdown(header, rows)


def kinds(models: dict[str, Any]) -> str:
    names = list(next(iter(models.values()))["test"]["kinds"])
    hidden = {name: next(iter(models.values()))["test"]["kinds"][name]["hidden"] for name in names}
    rows = []
    for name, cell in models.items():
        shares = cell["test"]["kinds"]
        rows.append([name, *(triple({k: shares[kind][k]["value"] for k in ("1", "10", "20")}) for kind in names)])
    return markdown(["model", *(f"{name} ({hidden[name]:,} hidden)" for name in names)], rows)


def deciles(models: dict[str, Any]) -> str:
    """recall@10 by how frequent what is hidden is, from the most frequent tenth to the rarest."""
    first = next(iter(models.values()))["test"]["deciles"]
    rows = [
        [name, *(f"{tenth['recall_at_10']:.2f}".removeprefix("0") for tenth in cell["test"]["deciles"])]
        for name, cell in models.items()
    ]
    return markdown(
        ["recall@10 where counts are at least", *(f"{tenth['lowest_frequency']:,}" for tenth in first)], rows
    )


def examples(models: dict[str, Any]) -> str:
    lines = []
    for text in next(iter(models.values()))["examples"]:
        lines.append(f"**{text}**\n")
        for name, cell in models.items():
            for number, answers in enumerate(cell["examples"][text], 1):
                mask = f", mask {number}" if len(cell["examples"][text]) > 1 else ""
                proof = "certified" if answers[0]["certified"] else "not certified"
                lines.append(f"- {name}{mask}: {' '.join(a['name'] for a in answers)} ({proof})")
        for number, answers in enumerate(FIGURE_5.get(text, []), 1):
            mask = f", mask {number}" if len(FIGURE_5[text]) > 1 else ""
            lines.append(f"- the paper's hash20-h1024{mask}: {answers}")
        lines.append("")
    return "\n".join(lines).rstrip()


def throughput(models: dict[str, Any]) -> str:
    rows = []
    for name, found in models.items():
        ours, theirs = found["ours"], found["Hugging Face"]
        rate = theirs.get("examples_per_second")
        told = f"{rate:.2f}, {theirs['batch']} at a time" if rate else f"{theirs['error']}"
        ratio = f"{ours['examples_per_second'] / rate:.1f}" if rate else "–"
        rows.append([name, f"{ours['examples_per_second']:.1f}", told, ratio])
    return markdown(["encoder of", "ours, examples a second", "BertForMaskedLM", "ratio"], rows)


def picture(results: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not results["models"]:
        return
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axis, k in zip(axes, (1, 10), strict=True):
        for color, (name, cell) in zip(COLORS, results["models"].items(), strict=False):
            points = [(p["seconds"] / 60, p[f"recall_at_{k}"]) for p in cell["history"]]
            style = "-" if name.startswith("hash") else "--"
            axis.plot(*zip(*points, strict=True), style, color=color, label=name, linewidth=2, marker=".")
        axis.set(xlabel="minutes", ylim=(0, None))
        axis.set_title(f"recall@{k} on validation documents", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(folder / "text.png", dpi=130)
