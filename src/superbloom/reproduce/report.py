"""The report: report.md with tables, claims, examples and pictures, and all results in results.json."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version

from superbloom.evaluate import markdown
from superbloom.reproduce import paper, tables
from superbloom.reproduce.claims import Claim, claims
from superbloom.reproduce.plots import plots
from superbloom.reproduce.results import Results
from superbloom.reproduce.settings import SETTINGS
from superbloom.reproduce.workbench import Workbench
from superbloom.storage import write_atomically
from superbloom.store import escaped
from superbloom.version import __version__


def write_report(bench: Workbench) -> None:
    """Write the report of all finished cells; each file is replaced as a whole."""
    results = _finished(bench)
    pictures = plots(results)
    for name, image in pictures.items():
        write_atomically(bench.folder / name, image)
    document = results.document() | {"claims": [asdict(claim) for claim in claims(results)], "machine": machine()}
    bench.keep("results", document)
    text = page(results, set(pictures)).encode(errors="backslashreplace")
    write_atomically(bench.folder / "report.md", text)


def _finished(bench: Workbench) -> Results:
    files = (bench.folder / "cells").glob("*-seed*.json")
    kept = [cell for file in files if (cell := bench.kept(f"cells/{file.stem}")) is not None]
    kept.sort(key=lambda cell: (cell["seed"], cell["cell"]))
    test_rows = len(bench.corpus.rows("test"))
    return Results(bench.kept(SETTINGS) or {}, kept, test_rows, bench.kept("yardsticks"), bench.kept("costs"))


def page(results: Results, pictures: set[str]) -> str:
    """Return the whole report as Markdown."""
    parts = [
        *_about(results),
        *claims_table(claims(results)),
        *tables.table_2(results, pictures),
        *tables.table_3(results, pictures),
        *tables.table_5(results, pictures),
        *tables.table_6(results),
        *tables.table_7(results),
        *tables.costs(results),
        *tables.sensitivity(results, pictures),
        *_examples(results),
    ]
    return "\n\n".join(parts) + "\n"


def _about(results: Results) -> Iterator[str]:
    settings = results.settings
    every = [cell for seeds in results.cells.values() for cell in seeds]
    counts = ", ".join(f"{value:,} {name}" for name, value in settings["counts"].items())
    hours = sum(cell["seconds"] for cell in every) / 3600
    processor = sum(cell["processor seconds"] for cell in every) / 3600
    yield f"# The paper's experiments on {escaped(settings['name'])}"
    yield (
        f"{counts}. {len(every)} models, {hours:.1f} hours of training on {settings['threads']} "
        f"thread{'s' * (settings['threads'] > 1)} ({processor:.1f} hours of processor time with evaluation). "
        f"Most models train for {2 * settings['minutes of a share']:.2f} minutes. {machine()}."
    )
    if results.yardsticks:
        hundred, tenth = (100 * results.yardsticks["share of links"][name] for name in ("100", "tenth"))
        yield (
            f"The 100 most frequent names are {hundred:.1f} % of all elements (the paper: {paper.TOP_100_PERCENT} %), "
            f"the most frequent tenth {tenth:.1f} % ({paper.TOP_TENTH_PERCENT:.0f} %)."
        )
    if settings.get("left out"):
        yield f"Left out, too large for the memory of this machine: {', '.join(map(escaped, settings['left out']))}."
    hidden = every[0]["hidden"] if every else 0
    yield (
        f"Recall is in per cent, on {hidden:,} hidden elements of {results.rows:,} test rows, the same for all models. "
        "Each model was measured once. 95 % intervals count the elements of one row as one observation, and "
        "differences compare the same elements in pairs. Intervals cover the choice of test rows, not the choice of "
        "seeds. Scores include our prior of ids, except in “paper: …” and Table 6. The paper used other data, and 16 "
        "TPUs for a million steps: compare which model is ahead, not the values."
    )


def claims_table(found: list[Claim]) -> Iterator[str]:
    """Yield the paragraphs about the paper's claims."""
    if found:
        yield "## What the paper claims, and what is found here"
        rows = [[c.where, c.text, c.printed, c.found, f"**{c.verdict}**"] for c in found]
        yield markdown(["", "claim", "the paper", "here", "verdict"], rows)
        yield "Differences are in points of recall. Undecided: zero is within the 95 % interval."


def _examples(results: Results) -> Iterator[str]:
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
            yield "Analogies, each given with another country and its capital:"
            rows = [
                [
                    escaped(" · ".join(a["asked"])),
                    escaped(a["right"]),
                    str(a["rank"] or "beyond 10"),
                    escaped(a["first"]),
                ]
                for a in cell["analogies"]
            ]
            yield markdown(["query", "right answer", "its rank", "first answer"], rows)


def machine() -> str:
    """Return the machine and the versions that a report names."""
    packages = ", ".join([f"superbloom {__version__}", *(f"{name} {version(name)}" for name in ("torch", "numpy"))])
    return f"{os.cpu_count()} processors ({platform.machine()}), Python {platform.python_version()}, {packages}"
