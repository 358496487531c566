"""Run the paper's experiments: train the models that are not trained yet, measure them, write the report after each.

`superbloom reproduce` calls `reproduce`. An interrupted call resumes when it is called again with the same folder.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from superbloom.api import Superbloom
from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.reproduce.cells import ENTITY_PARTS, PART_ALIASES, PARTS, TEXT_PARTS, Cell, cells
from superbloom.reproduce.costs import query_costs, step_costs
from superbloom.reproduce.report import write_report
from superbloom.reproduce.settings import OVERHEAD, SETTINGS, check_folder, duration, settings_for
from superbloom.reproduce.workbench import Workbench
from superbloom.training.limits import check_memory
from superbloom.training.run_folder import lock_run


def reproduce(
    corpus_folder: Path,
    out: Path,
    *,
    only: Sequence[str] = (),
    budget: str | None = None,
    seeds: int = 1,
    quiet: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Make every table and figure that a corpus allows, or only some; resumes an earlier call in this folder."""
    corpus = Corpus.open(corpus_folder)
    chosen = _chosen_parts(corpus, only)
    check_folder(out)
    wanted, too_large = _fitting(corpus, [cell for cell in cells(corpus, seeds) if chosen & {*cell.parts}])
    for name, reason in too_large.items():
        notice(f"{name} is left out: {reason}")
    with lock_run(out):
        settings = settings_for(corpus_folder, corpus, out, budget, sum(cell.shares for cell in wanted))
        fits = {cell.name for cell in wanted}
        earlier = {name: reason for name, reason in settings.get("left out", {}).items() if name not in fits}
        settings["left out"] = earlier | too_large
        bench = Workbench(corpus, out, settings["minutes of a share"])
        bench.keep(SETTINGS, settings)
        _measure(bench, chosen, notice)
        left = [cell for cell in wanted if bench.result(cell) is None]
        for cell in wanted:  # the process may have been killed before it removed the checkpoints of a finished cell
            if cell not in left:
                shutil.rmtree(bench.run_of(cell), ignore_errors=True)
        for number, cell in enumerate(left):
            rest = sum(map(bench.minutes, left[number:])) * (1 + OVERHEAD)
            done = len(wanted) - len(left) + number
            time_left = f"{bench.minutes(cell):.1f} min; {duration(rest)} left in all"
            notice(f"[{done + 1}/{len(wanted)}] {_label(cell)}: {time_left}")
            if not bench.attempt(cell, _label(cell), quiet, notice):
                break
            if bench.result(cell) is None:
                shutil.rmtree(bench.run_of(cell), ignore_errors=True)
            write_report(bench)
        write_report(bench)
    finished = sum(bench.result(cell) is not None for cell in wanted)
    return {"report": str(out / "report.md"), "cells": len(wanted), "done": finished}


def _chosen_parts(corpus: Corpus, only: Sequence[str]) -> set[str]:
    """Return the parts given by --only, or all that the corpus allows."""
    possible = TEXT_PARTS if corpus.vocab.is_text else ENTITY_PARTS
    asked = [PART_ALIASES.get(name, name) for word in only for name in re.split(r"[,\s]+", word) if name]
    for name in asked:
        if name not in PARTS:
            raise InputError(f"--only {name} given; {', '.join([*PARTS, *PART_ALIASES])} are allowed")
        if name not in possible:
            kind = "text" if possible is TEXT_PARTS else "names"
            raise InputError(f"--only {name} given, and this is a corpus of {kind}; {', '.join(possible)} are possible")
    return set(asked or possible)


def _fitting(corpus: Corpus, wanted: list[Cell]) -> tuple[list[Cell], dict[str, str]]:
    """Return the cells that fit into memory, and for each of the others the reason why it does not."""
    fits, too_large = list[Cell](), dict[str, str]()
    for cell in wanted:
        try:
            check_memory(Superbloom(**cell.model).config_for(corpus), TrainConfig(steps=1, **cell.training))
            fits.append(cell)
        except InputError as error:
            too_large[cell.name] = str(error)
    return fits, too_large


def _measure(bench: Workbench, chosen: set[str], notice: Callable[[str], None]) -> None:
    """Measure what needs no training."""
    if bench.kept("yardsticks") is None:
        notice("counting: popularity, co-occurrence")
        bench.keep("yardsticks", bench.yardsticks())
    if "costs" in chosen and bench.kept("costs") is None:
        notice("timing steps and queries")
        begin = time.monotonic()
        found: dict[str, Any] = {"steps": step_costs(bench.corpus), "queries": query_costs(bench.corpus)}
        bench.keep("costs", found | {"threads": torch.get_num_threads(), "seconds": time.monotonic() - begin})


def _label(cell: Cell) -> str:
    return cell.name + (f", seed {cell.seed}" if cell.seed else "")
