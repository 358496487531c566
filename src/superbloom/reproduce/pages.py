"""The report: Markdown with what the paper printed beside what was found, pictures, and all of it as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version

from superbloom.evaluate import KS, markdown
from superbloom.reproduce import paper
from superbloom.reproduce.cells import AS_IN_PAPER, DEEP, NEGATIVES, SENSITIVITY_ALPHAS, SENSITIVITY_HASHES, TEXT_PAIRS
from superbloom.reproduce.claims import claims
from superbloom.reproduce.lab import SETTINGS, Lab
from superbloom.reproduce.plots import plots
from superbloom.reproduce.results import NO_PRIOR, Results
from superbloom.storage import write_atomically
from superbloom.store import escaped
from superbloom.version import __version__


def write_report(lab: Lab) -> None:
    """Everything that is done so far; each file whole or not at all."""
    results = results_of(lab)
    pictures = plots(results)
    for name, image in pictures.items():
        write_atomically(lab.folder / name, image)
    document = results.document() | {"claims": [asdict(claim) for claim in claims(results)], "machine": _machine()}
    lab.keep("results", document)
    text = page(results, set(pictures)).encode(errors="backslashreplace")
    write_atomically(lab.folder / "report.md", text)


def results_of(lab: Lab) -> Results:
    files = (lab.folder / "cells").glob("*-seed*.json")
    kept = [cell for file in files if (cell := lab.kept(f"cells/{file.stem}")) is not None]
    kept.sort(key=lambda cell: (cell["seed"], cell["cell"]))
    beside = {name: lab.kept(name) for name in ("yardsticks", "costs")}
    return Results(lab.kept(SETTINGS) or {}, kept, len(lab.corpus.rows("test")), **beside)


def page(results: Results, pictures: set[str]) -> str:
    """The whole report."""
    sections = (_about, _claims, _table_2, _table_3, _table_5, _table_6, _table_7, _costs, _sensitivity, _examples)
    parts = [part for section in sections for part in section(results, pictures)]
    return "\n\n".join(parts) + "\n"


def _about(results: Results, _: set[str]) -> Iterator[str]:
    settings = results.settings
    every = [cell for seeds in results.cells.values() for cell in seeds]
    counts = ", ".join(f"{value:,} {name}" for name, value in settings["counts"].items())
    hours = sum(cell["seconds"] for cell in every) / 3600
    processor = sum(cell["processor seconds"] for cell in every) / 3600
    yield f"# The paper's experiments on {escaped(settings['name'])}"
    yield (
        f"{counts}. {len(every)} models, {hours:.1f} hours of training on {settings['threads']} "
        f"thread{'s' * (settings['threads'] > 1)} ({processor:.1f} hours of a processor with evaluation), "
        f"{settings['minutes of a share']:.2f} minutes a share; most models get two. {_machine()}."
    )
    yardsticks = results.beside.get("yardsticks")
    if yardsticks:
        hundred, tenth = (100 * yardsticks["share of links"][name] for name in ("100", "tenth"))
        yield (
            f"The 100 most frequent names are {hundred:.1f} % of all elements (in the paper {paper.TOP_100} %), "
            f"the most frequent tenth {tenth:.1f} % ({paper.TOP_TENTH:.0f} %)."
        )
    if settings.get("left out"):
        yield f"Left out, too large for the memory of this machine: {', '.join(map(escaped, settings['left out']))}."
    hidden = every[0]["hidden"] if every else 0
    yield (
        f"Recall in per cent on {hidden:,} hidden elements of test rows, the same for all models, looked at once for "
        f"each, with 95 % intervals in which the elements of one of {results.rows:,} rows count as one thing. "
        "Differences are of the same elements in pairs. They tell what other test rows might have told, not what other "
        "seeds might have. Scores have our prior of ids, but for “paper: …” and Table 6. The paper's numbers are of "
        "other data, and of 16 TPUs for a million steps: what can be compared is which model is ahead, not the heights."
    )


def _claims(results: Results, _: set[str]) -> Iterator[str]:
    found = claims(results)
    if found:
        yield "## What the paper claims, and what is found here"
        rows = [[c.where, c.text, c.printed, c.found, f"**{c.verdict}**"] for c in found]
        yield markdown(["", "claim", "the paper", "here", "verdict"], rows)
        yield "Differences in points of recall. Undecided: zero lies within the 95 % interval."


def _table_2(results: Results, pictures: set[str]) -> Iterator[str]:
    names = {"baseline": "baseline", "superbloom": "superbloom"}
    names |= {name: "sampled-softmax" for name in results.cells if name.startswith("sampled-softmax")}
    names |= {AS_IN_PAPER + name: name for name in ("baseline", "superbloom")}
    rows = [_row(results, name, paper.TABLE_2[row]) for name, row in names.items() if name in results]
    if "superbloom" in results:
        rows.insert(2, _row(results, "superbloom" + NO_PRIOR, paper.TABLE_2["superbloom"]))
    if not rows:
        return
    yield "## Tables 1 and 2: of one size, hashed and not; and a larger one, sampled"
    yield (
        f"Equal time for each. The sampled softmax draws {NEGATIVES:.1%} of the ids as negatives, with logQ "
        "correction; its proposal and rate are chosen on validation rows"
        + (f": *{results.sampled.split(', ', 1)[1]}*" if results.sampled else "")
        + ". It updates few rows a step and has no running average of the weights, which the others have. “paper:” is "
        "read as in the paper: the tokens of an id apart, as a set, one softmax over the tokens of all hashes."
    )
    yield markdown(HEADER, rows + _yardsticks(results))
    if "curves.png" in pictures:
        yield "![Validation recall against minutes](curves.png)"
    if "figure3.png" in pictures:
        yield "## Figure 3: by label frequency"
        yield "![rec@1 by label frequency](figure3.png)"
        deciles = {name: results.first(name)["deciles"] for name in ("baseline", "superbloom")}
        header = [
            "rec@1 where labels occur at least",
            *(f"{each['lowest_frequency']:,}" for each in deciles["baseline"]),
        ]
        yield markdown(header, [[n, *(f"{100 * e['recall_at_1']:.1f}" for e in found)] for n, found in deciles.items()])


def _table_3(results: Results, pictures: set[str]) -> Iterator[str]:
    names = [
        *paper.TABLE_3,
        "baseline-bag",
        "superbloom-bag",
        "superbloom-set-l1",
        *(AS_IN_PAPER + name for name in paper.TABLE_3),
    ]
    rows = [_row(results, name, paper.TABLE_3.get(name.removeprefix(AS_IN_PAPER))) for name in names if name in results]
    if rows:
        alpha = max(cell["model"]["alpha"] for name in names if name in results for cell in results.cells[name])
        yield "## Table 3: depth"
        yield (
            f"One layer and {DEEP} (the paper: 12), α={alpha} (20); “wide” has one layer and the size of the deep one. "
            "A bag of digests does not attend, every element counts alike; “set” attends, without distances. The deep "
            "and the wide get twice the time."
        )
        yield markdown(HEADER, rows)
        if "depth.png" in pictures:
            yield "![rec@10 by depth](depth.png)"


def _table_5(results: Results, pictures: set[str]) -> Iterator[str]:
    names = [name for name in results.cells if name.startswith(("baseline-h", "hash")) and "-h" in name]
    if not names:
        return
    yield "## Tables 4 and 5: text"
    stand_for = {f"baseline-h{width}": rows[0] for width, _, _, rows in TEXT_PAIRS}
    hashed = [name for name in names if name.startswith("hash")]
    ordered = sorted(hashed, key=lambda name: results.first(name)["parameters"])
    stand_for |= {name: rows[1] for name, (_, _, _, rows) in zip(ordered, TEXT_PAIRS, strict=False)}
    names.sort(key=lambda name: results.first(name)["parameters"])
    yield "Small stand-ins: unhashed ones are narrow, hashed ones as wide as gives the same size; equal time for each."
    yield markdown(HEADER, [_row(results, name, paper.TABLE_5.get(stand_for.get(name, ""))) for name in names])
    if "curves.png" in pictures:
        yield "![Validation recall against minutes](curves.png)"


def _table_6(results: Results, _: set[str]) -> Iterator[str]:
    beams = results.first("superbloom").get("beams") if "superbloom" in results else None
    if beams:
        yield "## Table 6: beam width"
        yield (
            "One round of Algorithm 1, without the prior; “certified” goes on until the answer is proved. The share "
            "certified is of the twenty best: where it is not, another name might score higher."
        )
        rows = []
        for width, found in beams.items():
            printed = paper.TABLE_6.get(int(width)) if width.isdecimal() else None
            shares = [f"{100 * found['recall'][str(k)]['value']:.1f}" for k in KS]
            label = f"B={width}" if width.isdecimal() else "as wide as a proof takes"
            rows.append([label, *shares, f"{found['certified']:.1%}", _paper(printed)])
        yield markdown(["beam", *(f"rec@{k}" for k in KS), "certified", "the paper"], rows)


def _table_7(results: Results, _: set[str]) -> Iterator[str]:
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
        header = ["α", "coherent functions", "token rec@1", "entity rec@1", "entity rec@10"]
        yield markdown([*header, "the paper: token", "entity rec@1"], rows)


def _costs(results: Results, _: set[str]) -> Iterator[str]:
    costs = results.beside.get("costs")
    if costs:
        yield "## Sections 2.4 and 2.5: what steps and queries cost"
        rows = [
            [
                f"{row['ids']:,}",
                row["model"],
                f"{row['parameters']:,}",
                f"{row['step']:,.0f}",
                f"{row['output layer'] / row['step']:.0%}",
            ]
            for row in costs["steps"]
        ]
        yield markdown(["ids", "model, d=128", "parameters", "a step, ms", "of it for E^O"], rows)
        rows = [
            [
                f"{row['ids']:,}",
                str(row["alpha"]),
                *(f"{row[name]:.2f}" for name in ("exhaustive", "approximate", "certified")),
                f"{row['exhaustive'] / row['approximate']:.1f}, {row['exhaustive'] / row['certified']:.1f}",
            ]
            for row in costs["queries"]
        ]
        header = ["ids", "α", "all ids scored, ms", "one round with B=20, ms", "until proved, ms", "times as fast"]
        yield markdown(header, rows)
        yield (
            "Batches of 128 segments; of ids made up to be more than the corpus has, only the number counts. Queries "
            "one at a time for the 20 best, of drawn log-probabilities with a deviation of 3."
        )


def _sensitivity(results: Results, pictures: set[str]) -> Iterator[str]:
    cells = {
        (alpha, m): f"α={alpha}, m={m}"
        for alpha in SENSITIVITY_ALPHAS
        for m in SENSITIVITY_HASHES
        if f"α={alpha}, m={m}" in results
    }
    if not cells:
        return
    yield "## Sensitivity to α and m, at one size and in one time"
    yield (
        "Each model is as wide as gives the size of α=4, m=2, d=128. With one hash and α above 1, ids that share a "
        "bucket could not be told apart; so there is none."
    )
    rows = []
    for (alpha, m), name in cells.items():
        cell = results.first(name)
        milliseconds = 1000 * cell["seconds"] / max(1, cell["steps"])
        shares = [_share(results.recall(name, k)) for k in KS]
        shape = [str(alpha), str(m), str(cell["model"]["dim"]), f"{cell['parameters']:,}", f"{milliseconds:,.0f}"]
        rows.append([*shape, f"{cell['steps']:,}", *shares])
    header = ["α", "m", "d", "parameters", "ms a step, with validation", "steps", *(f"rec@{k}" for k in KS)]
    yield markdown(header, rows)
    if "sensitivity.png" in pictures:
        yield "![rec@10 against α and m](sensitivity.png)"


def _examples(results: Results, _: set[str]) -> Iterator[str]:
    asked = {name: seeds[0] for name, seeds in results.cells.items() if seeds[0].get("examples")}
    if not asked:
        return
    yield "## Appendices E and F: examples"
    for name, cell in asked.items():
        lines = [f"*{escaped(name)}*, without names of the context:" if "analogies" in cell else f"*{escaped(name)}*:"]
        for context, masks in cell["examples"].items():
            for found in masks:
                proof = "certified" if found["certified"] else "not certified"
                names = ", ".join(map(escaped, found["names"]))
                lines.append(f"- **{escaped(context)}** → {names} ({proof})")
        yield "\n".join([lines[0], "", *lines[1:]])
        if cell.get("analogies"):
            yield "Analogies, each asked with the capital of another country:"
            rows = [
                [
                    escaped(" · ".join(a["asked"])),
                    escaped(a["right"]),
                    str(a["rank"] or "beyond 10"),
                    escaped(a["first"]),
                ]
                for a in cell["analogies"]
            ]
            yield markdown(["asked", "right", "its rank", "first"], rows)


HEADER = ["model", "parameters", "d", "layers", "steps", *(f"rec@{k}" for k in KS), "over seeds", "the paper"]


def _row(results: Results, name: str, printed: tuple[float, ...] | None) -> list[str]:
    of = name.removesuffix(NO_PRIOR)
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
    found = (results.beside.get("yardsticks") or {"recall": {}})["recall"]
    empty = [""] * 4
    return [[f"*{name}*", *empty, *(_share(shares[str(k)]) for k in KS), "", ""] for name, shares in found.items()]


def _share(found: dict[str, float]) -> str:
    """A share with its interval, in per cent.

    >>> _share({"value": 0.25, "low": 0.2, "high": 0.3})
    '25.0 (20.0–30.0)'
    """
    return f"{100 * found['value']:.1f} ({100 * found['low']:.1f}–{100 * found['high']:.1f})"


def _paper(printed: tuple[float, ...] | None) -> str:
    return "–" if printed is None else " / ".join(f"{value:.1f}" for value in printed)


def _machine() -> str:
    packages = ", ".join([f"superbloom {__version__}", *(f"{name} {version(name)}" for name in ("torch", "numpy"))])
    return f"{os.cpu_count()} processors ({platform.machine()}), Python {platform.python_version()}, {packages}"
