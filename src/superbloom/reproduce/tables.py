"""The tables of the report, as Markdown, with the numbers of the paper next to ours.

Each function yields the paragraphs of one section, or nothing if its cells are not finished. pictures are the names of
the PNG files that exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from superbloom.evaluate import KS, markdown
from superbloom.reproduce import paper
from superbloom.reproduce.cells import DEEP_LAYERS, NEGATIVES_SHARE, PAPER_PREFIX, TEXT_PAIRS
from superbloom.reproduce.results import BY_PROBABILITY, BY_SUM, Results, cell_of

QUERY_COSTS = {
    "exhaustive": "all ids scored",
    "approximate": "one round with B=20",
    "certified": "until certified",
    "posterior": "until certified by probability",
}
HEADER = ["model", "parameters", "d", "layers", "steps", *(f"recall@{k}" for k in KS), "over seeds", "the paper"]


def table_2(results: Results, pictures: set[str]) -> Iterator[str]:
    names = {"baseline": "baseline", "superbloom": "superbloom", "superbloom" + BY_SUM: "superbloom"}
    names |= {name: "sampled-softmax" for name in results.cells if name.startswith("sampled-softmax")}
    names |= {PAPER_PREFIX + name: name for name in ("baseline", "superbloom")}
    names |= {PAPER_PREFIX + "superbloom" + BY_PROBABILITY: "superbloom"}
    rows = [_row(results, name, paper.TABLE_2[row]) for name, row in names.items() if cell_of(name) in results]
    if not rows:
        return
    yield "## Tables 1 and 2: hashed and unhashed models of one size, and a larger one with a sampled softmax"
    yield (
        f"All models train for the same time. The sampled softmax draws {NEGATIVES_SHARE:.1%} of the ids as negatives, "
        "with logQ correction. Its proposal and learning rate are chosen on validation rows"
        + (f": *{results.sampled.split(', ', 1)[1]}*" if results.sampled else "")
        + ". It updates few rows per step and has no running average of the weights; the other models have one. "
        "“paper:” has inputs and outputs as in the paper: each token of an id is an element, elements are a set, and "
        "one softmax covers the tokens of all hashes. These models rank by the paper's sum over hashes, the others by "
        "probability, unless the row names the score."
    )
    yield markdown(HEADER, rows + _yardsticks(results))
    if "curves.png" in pictures:
        yield "![Validation recall against minutes](curves.png)"
    if "figure3.png" in pictures:
        yield "## Figure 3: by label frequency"
        yield "![recall@1 by label frequency](figure3.png)"
        deciles = {name: results.first(name)["deciles"] for name in ("baseline", "superbloom")}
        header = [
            "recall@1 where labels occur at least",
            *(f"{each['lowest_frequency']:,}" for each in deciles["baseline"]),
        ]
        yield markdown(header, [[n, *(f"{100 * e['recall_at_1']:.1f}" for e in found)] for n, found in deciles.items()])


def table_3(results: Results, pictures: set[str]) -> Iterator[str]:
    names = [
        *paper.TABLE_3,
        "baseline-bag",
        "superbloom-bag",
        "superbloom-set-l1",
        *(PAPER_PREFIX + name for name in paper.TABLE_3),
    ]
    rows = [
        _row(results, name, paper.TABLE_3.get(name.removeprefix(PAPER_PREFIX))) for name in names if name in results
    ]
    if rows:
        alpha = max(cell["model"]["alpha"] for name in names if name in results for cell in results.cells[name])
        yield "## Table 3: depth"
        yield (
            f"One layer or {DEEP_LAYERS} (the paper: 12), α={alpha} (the paper: 20). “wide” has one layer and the size "
            "of the deep model. “bag” does not attend: every element has the same weight. “set” attends, but does not "
            "see distances. The deep and wide models train for twice the time."
        )
        yield markdown(HEADER, rows)
        if "depth.png" in pictures:
            yield "![recall@10 by depth](depth.png)"


def table_5(results: Results, pictures: set[str]) -> Iterator[str]:
    names = [name for name in results.cells if name.startswith(("baseline-h", "hash")) and "-h" in name]
    if not names:
        return
    yield "## Tables 4 and 5: text"
    stand_for = {f"baseline-h{width}": rows[0] for width, _, _, rows in TEXT_PAIRS}
    stand_for |= {wide: rows[1] for _, wide, rows in results.text_pairs()}
    names.sort(key=lambda name: results.first(name)["parameters"])
    yield "Small stand-ins: narrow unhashed models, and hashed models of the same size. All train for the same time."
    yield markdown(HEADER, [_row(results, name, paper.TABLE_5.get(stand_for.get(name, ""))) for name in names])
    if "curves.png" in pictures:
        yield "![Validation recall against minutes](curves.png)"


def table_6(results: Results) -> Iterator[str]:
    beams = results.first("superbloom").get("beams") if "superbloom" in results else None
    if beams:
        yield "## Table 6: beam width"
        yield (
            "One round of Algorithm 1 by the paper's sum, and searches until the answer is certified, by both scores. "
            "“certified” is the share of queries whose twenty best are proved: no other name scores higher."
        )
        rows = []
        for width, found in beams.items():
            printed = paper.TABLE_6.get(int(width)) if width.isdecimal() else None
            shares = [f"{100 * found['recall'][str(k)]['value']:.1f}" for k in KS]
            label = f"B={width}" if width.isdecimal() else f"until {width}"
            rows.append([label, *shares, f"{found['certified']:.1%}", _paper(printed)])
        yield markdown(["beam", *(f"recall@{k}" for k in KS), "certified", "the paper"], rows)


def table_7(results: Results) -> Iterator[str]:
    rows = []
    for (alpha, coherent), (tokens, entities) in paper.TABLE_7.items():
        name = results.with_coherent(alpha, coherent)
        if name in results:
            cell = results.first(name)
            found = [
                f"{100 * cell['tokens']['value']:.1f}",
                _share(results.recall(name, 1)),
                _share(results.recall(name, 10)),
            ]
            rows.append([str(alpha), str(coherent), *found, f"{tokens:.2f}", f"{entities:.2f}"])
    if len(rows) > 1:
        yield "## Table 7: coherent hashing"
        header = ["α", "coherent functions", "token recall@1", "entity recall@1", "entity recall@10"]
        yield markdown([*header, "the paper: token", "entity recall@1"], rows)


def costs(results: Results) -> Iterator[str]:
    if results.costs:
        yield "## Sections 2.4 and 2.5: the cost of steps and queries"
        rows = [
            [
                f"{row['ids']:,}",
                row["model"],
                f"{row['parameters']:,}",
                f"{row['step']:,.0f}",
                f"{row['output layer'] / row['step']:.0%}",
            ]
            for row in results.costs["steps"]
        ]
        yield markdown(["ids", "model, d=128", "parameters", "ms per step", "of it for E^O"], rows)
        rows = [
            [
                f"{row['ids']:,}",
                str(row["alpha"]),
                *(f"{row[name]:.2f}" if name in row else "–" for name in QUERY_COSTS),
                f"{row['exhaustive'] / row['approximate']:.1f}, {row['exhaustive'] / row['certified']:.1f}",
            ]
            for row in results.costs["queries"]
        ]
        header = ["ids", "α", *(f"{label}, ms" for label in QUERY_COSTS.values()), "times as fast"]
        yield markdown(header, rows)
        yield (
            "Batches of 128 segments. Catalogues larger than the corpus are artificial; only their size matters. "
            "Queries ask for the 20 best, one query at a time, with random log-probabilities of standard deviation 3."
        )


def sensitivity(results: Results, pictures: set[str]) -> Iterator[str]:
    cells = results.sensitivity
    if not cells:
        return
    yield "## Sensitivity to α and m, at equal size and time"
    yield (
        "Each model has the width d that gives it the size of α=4, m=2, d=128. There is no model with m=1 and α above "
        "1, because it could not distinguish ids that share a bucket."
    )
    rows = []
    for (alpha, m), name in cells.items():
        cell = results.first(name)
        milliseconds = 1000 * cell["seconds"] / max(1, cell["steps"])
        shares = [_share(results.recall(name, k)) for k in KS]
        shape = [str(alpha), str(m), str(cell["model"]["dim"]), f"{cell['parameters']:,}", f"{milliseconds:,.0f}"]
        rows.append([*shape, f"{cell['steps']:,}", *shares])
    header = ["α", "m", "d", "parameters", "ms per step, with validation", "steps", *(f"recall@{k}" for k in KS)]
    yield markdown(header, rows)
    if "sensitivity.png" in pictures:
        yield "![recall@10 against α and m](sensitivity.png)"


def _row(results: Results, name: str, printed: tuple[float, ...] | None) -> list[str]:
    of = cell_of(name)
    cell = results.first(of)
    shares = [_share(results.recall(name, k)) for k in KS]
    spread = results.spread(of, 10)
    seeds = "–" if spread is None else f"± {100 * spread:.1f} ({len(results.cells[of])})"
    shape = [
        f"{cell['parameters']:,}",
        str(cell["model"]["dim"]),
        str(cell["model"].get("layers", 2)),
        f"{cell['steps']:,}",
    ]
    return [name, *shape, *shares, seeds, _paper(printed)]


def _yardsticks(results: Results) -> list[list[str]]:
    found, empty = results.yardstick_recall, [""] * 4
    return [[f"*{name}*", *empty, *(_share(shares[str(k)]) for k in KS), "", ""] for name, shares in found.items()]


def _share(found: dict[str, float]) -> str:
    """Format a share with its interval, in per cent.

    >>> _share({"value": 0.25, "low": 0.2, "high": 0.3})
    '25.0 (20.0–30.0)'
    """
    return f"{100 * found['value']:.1f} ({100 * found['low']:.1f}–{100 * found['high']:.1f})"


def _paper(printed: tuple[float, ...] | None) -> str:
    return "–" if printed is None else " / ".join(f"{value:.1f}" for value in printed)
