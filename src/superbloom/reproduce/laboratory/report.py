"""The laboratory's report: report.md with tables, verdicts and pictures, and all results in results.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from superbloom.evaluate import KS, markdown
from superbloom.reproduce import paper
from superbloom.reproduce.laboratory.bench import KINDS
from superbloom.reproduce.laboratory.cells import ALPHA, BASE, COHERENT_ALPHAS, WORLDS, cell_name, grid
from superbloom.reproduce.laboratory.findings import Findings, interval, lab_claims, share_text
from superbloom.reproduce.laboratory.pictures import pictures
from superbloom.reproduce.report import claims_table, machine
from superbloom.reproduce.results import coded
from superbloom.reproduce.settings import SETTINGS
from superbloom.reproduce.workbench import keep, kept
from superbloom.storage import write_atomically

PICTURES = {
    "curves.png": "## Learning curves",
    "probe.png": "## The layer probe",
    "figure3.png": "## Figure 3",
    "phase-depth.png": "## Where depth helps hashed models more (Table 3)",
    "phase-size.png": "## Where a hashed model beats an unhashed one of its size (Table 2)",
    "phase-sampled.png": "## Where a sampled softmax is worse (Table 2)",
}
SECTIONS = {
    "table2": "Table 2: sizes, and sampled softmaxes",
    "table3": "Table 3: depth",
    "table7": "Table 7: coherent hashing",
    "m": "More hash functions, the same number of tokens",
    "alpha": "Densities α",
    "names": "Catalogues",
    "rows": "Amounts of data",
    "lists": "Rows of two lists",
}


def write_report(out: Path) -> None:
    """Write the report of all finished cells; each file is replaced as a whole."""
    findings = read_findings(out)
    drawn = pictures(findings)
    for name, image in drawn.items():
        write_atomically(out / name, image)
    found = [asdict(claim) for claim in lab_claims(findings)]
    keep(out, "results", _document(findings) | {"claims": found, "machine": machine()})
    text = page(findings, set(drawn)).encode(errors="backslashreplace")
    write_atomically(out / "report.md", text)


def read_findings(out: Path) -> Findings:
    """Read the finished cells and worlds of a folder."""

    def read(part: str, pattern: str) -> list[dict[str, Any]]:
        files = sorted((out / part).glob(pattern))
        return [found for file in files if (found := kept(out, f"{part}/{file.stem}")) is not None]

    return Findings(kept(out, SETTINGS) or {}, read("cells", "*-seed*.json"), read("worlds", "*.json"))


def _document(findings: Findings) -> dict[str, Any]:
    """Return all results for JSON, with one character per rank."""
    rank_lists = {"ranks", "ranks by sum"}
    cells = [
        {name: coded(value) if name in rank_lists else value for name, value in cell.items()}
        for seeds in findings.cells.values()
        for cell in seeds.values()
    ]
    worlds = [
        {name: value for name, value in world.items() if name not in {"kinds", "frequency"}}
        | {"ranks": coded(world["ranks"])}
        for world in findings.worlds.values()
    ]
    return {"settings": findings.settings, "worlds": worlds, "cells": cells}


def page(findings: Findings, drawn: set[str]) -> str:
    """Return the whole report as Markdown."""
    parts = [*_about(findings), *claims_table(lab_claims(findings)), *_worlds(findings)]
    for part, title in SECTIONS.items():
        parts += _table(findings, part, title)
    parts += [*_beams(findings), *_kinds(findings)]
    for name, title in PICTURES.items():
        if name in drawn:
            parts += [title, f"![{title.strip('# ')}]({name})"]
    return "\n\n".join(parts) + "\n"


def _about(findings: Findings) -> Iterator[str]:
    every = [cell for seeds in findings.cells.values() for cell in seeds.values()]
    hours, processor = (sum(cell[name] for cell in every) / 3600 for name in ("seconds", "processor seconds"))
    flat = sum(findings.is_flat(name) for name in findings.cells)
    yield "# The paper's claims in a laboratory"
    yield (
        f"Made-up worlds (`prepare synthetic`), whose best possible recall is known. {len(every)} "
        f"model{'s' * (len(every) != 1)}, {hours:.2f} hours of training ({processor:.2f} hours of processor time with "
        f"evaluation). {flat} of {len(findings.cells)} trained until validation was flat with every seed, the "
        f"others until their time was over (“rising”). {machine()}."
    )
    yield (
        "Models read as in the paper, from random weights: each token is an element, elements are a set, and one "
        "softmax covers the tokens of all hashes. They rank by the paper's sum. “our reading” adds the tokens of an id "
        "up, has a softmax per hash, and ranks by probability. Recall is in per cent, on hidden elements of test rows, "
        "the same for all models of a world. With several seeds, 95 % intervals are Student's t over seeds; with one, "
        "they cover the choice of hidden elements only."
    )


def _worlds(findings: Findings) -> Iterator[str]:
    if not findings.worlds:
        return
    yield "## The worlds, and the best possible recall"
    rows = [
        [
            name,
            f"{world['counts']['names']:,}",
            f"{world['counts']['train rows']:,}",
            f"{world['counts']['ids'] / world['counts']['rows']:.1f}",
            *(share_text(world["best"][str(k)]) for k in KS),
        ]
        for name in WORLDS
        if (world := findings.worlds.get(name)) is not None
    ]
    yield markdown(["world", "names", "training rows", "names of a row", *(f"best recall@{k}" for k in KS)], rows)


def _table(findings: Findings, part: str, title: str) -> Iterator[str]:
    rows = []
    finished = [cell for cell in grid() if part in cell.parts and cell.name in findings]
    if any(cell.parts[0] == part for cell in finished):  # a cell that other tables do not show
        for name in (cell.name for cell in finished):
            cell, world = findings.first(name), name.split(": ")[0] if ": " in name else BASE
            best = findings.worlds[world]["best"]
            through = findings.through_buckets(name)
            recalls = [
                f"{interval(findings.recall(name, k))} of {share_text(through.get(k, best[str(k)]))}" for k in KS
            ]
            shape = [str(cell["model"][of]) for of in ("num_hashes", "dim", "layers")]
            tokens = share_text(float(np.mean([own["tokens"]["value"] for own in findings.cells[name].values()])))
            length = f"{cell['steps']:,}{'' if findings.is_flat(name) else ', rising'}"
            seeds = str(len(findings.cells[name]))
            rows.append([name, f"{cell['parameters']:,}", *shape, length, seeds, *recalls, tokens])
    if rows:
        yield f"## {title}"
        header = ["model", "parameters", "m", "d", "layers", "steps", "seeds"]
        yield markdown([*header, *(f"recall@{k}, of the best" for k in KS), "token recall@1"], rows)
    if rows and part == "table3":
        yield (
            "“of” is the best possible recall: for a hashed model that ranks by the sum, that of perfect probabilities "
            "of buckets, which cannot tell a likely name from one that shares buckets with several."
        )
    if rows and part == "table7":
        printed = [
            f"α={alpha}: {' → '.join(str(paper.TABLE_7[alpha, n][1]) for n in range(3))}"
            for alpha in COHERENT_ALPHAS
            if (alpha, 0) in paper.TABLE_7
        ]
        yield f"The paper's entity recall@1 with 0, 1 and 2 coherent functions: {'; '.join(printed)}."


def _beams(findings: Findings) -> Iterator[str]:
    name = cell_name(alpha=ALPHA)
    beams = findings.cells.get(name, {}).get(0, {}).get("beams")
    if beams:
        yield "## Table 6: beam width"
        rows = [
            [
                f"B={width}" if width.isdecimal() else f"until {width}",
                *(share_text(own["recall"][str(k)]["value"]) for k in KS),
            ]
            for width, own in beams.items()
        ]
        yield markdown(["beam", *(f"recall@{k}" for k in KS)], rows)


def _kinds(findings: Findings) -> Iterator[str]:
    """What is hidden: a country or list follows from the topic of a row, a capital from the identity of a country."""
    world = findings.worlds.get(BASE)
    if world is None:
        return
    kinds, names = np.array(world["kinds"]), [name for name in findings.cells if ": " not in name]
    if not names:
        return
    shown = [
        [
            "*best possible*",
            *(share_text((np.array(world["ranks"]) < 1)[kinds == kind].mean()) for kind in range(len(KINDS))),
        ]
    ]
    for name in names:
        hits = np.mean([findings.hits(name, seed, 1) for seed in findings.cells[name]], axis=0)
        shown.append([name, *(share_text(hits[kinds == kind].mean()) for kind in range(len(KINDS)))])
    yield "## recall@1 by what is hidden, in the base world"
    yield markdown(["model", *KINDS], shown)
