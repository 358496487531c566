"""The command: train what is not yet trained, measure, and write the report after each cell."""

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
from superbloom.reproduce.cells import ALIASES, OF_ENTITIES, OF_TEXT, PARTS, Cell, cells
from superbloom.reproduce.costs import query_costs, step_costs
from superbloom.reproduce.lab import SETTINGS, Lab, Stopped
from superbloom.reproduce.pages import write_report
from superbloom.storage import MANIFESTS, read_json
from superbloom.training.limits import check_memory
from superbloom.training.run_folder import lock_run

BUDGET = "3h"
BESIDE = 0.12  # of the time is not training: evaluation, plots
SHORTEST, LONGEST = 0.01, 10**5  # minutes of a share


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
    """Every table and figure that a corpus allows, or some of them; goes on where an earlier call was."""
    corpus = Corpus.open(corpus_folder)
    chosen = _chosen(corpus, only)
    if out.is_file() or any((out / manifest).exists() for manifest in MANIFESTS.values()):
        raise InputError(f"{out} is a file, a corpus or a model folder; choose another --out for the report")
    wanted, too_large = _fitting(corpus, [cell for cell in cells(corpus, seeds) if chosen & {*cell.parts}])
    for name, reason in too_large.items():
        notice(f"{name} is left out: {reason}")
    with lock_run(out):
        settings = _settings(corpus_folder, corpus, out, budget, sum(cell.shares for cell in wanted))
        fits = {cell.name for cell in wanted}
        earlier = {name: reason for name, reason in settings.get("left out", {}).items() if name not in fits}
        settings["left out"] = earlier | too_large
        lab = Lab(corpus, out, settings["minutes of a share"])
        lab.keep(SETTINGS, settings)
        _measure(lab, chosen, notice)
        left = [cell for cell in wanted if lab.result(cell) is None]
        for cell in wanted:  # a kill may have come before the checkpoints of what was done were removed
            if cell not in left:
                shutil.rmtree(lab.run_of(cell), ignore_errors=True)
        for number, cell in enumerate(left):
            rest = sum(map(lab.minutes, left[number:])) * (1 + BESIDE)
            done = len(wanted) - len(left) + number
            notice(f"[{done + 1}/{len(wanted)}] {_named(cell)}: {lab.minutes(cell):.1f} min; {_time(rest)} left in all")
            try:
                lab.run(cell, quiet)
            except Stopped:
                notice("stopped; the same command goes on where it was")
                break
            except InputError as error:
                notice(f"{_named(cell)} failed and is left out: {error}")
                shutil.rmtree(lab.run_of(cell), ignore_errors=True)
            write_report(lab)
        write_report(lab)
    finished = sum(lab.result(cell) is not None for cell in wanted)
    return {"report": str(out / "report.md"), "cells": len(wanted), "done": finished}


def _chosen(corpus: Corpus, only: Sequence[str]) -> set[str]:
    possible = OF_TEXT if corpus.vocab.is_text else OF_ENTITIES
    asked = [ALIASES.get(name, name) for word in only for name in re.split(r"[,\s]+", word) if name]
    for name in asked:
        if name not in PARTS:
            raise InputError(f"--only {name} given; {', '.join([*PARTS, *ALIASES])} are allowed")
        if name not in possible:
            kind = "text" if possible is OF_TEXT else "names"
            raise InputError(f"--only {name} given, and this is a corpus of {kind}; {', '.join(possible)} are possible")
    return set(asked or possible)


def _fitting(corpus: Corpus, wanted: list[Cell]) -> tuple[list[Cell], dict[str, str]]:
    """The cells that memory is enough for, and why not for the others."""
    fits, too_large = list[Cell](), dict[str, str]()
    for cell in wanted:
        try:
            check_memory(Superbloom(**cell.model).config_for(corpus), TrainConfig(steps=1, **cell.training))
            fits.append(cell)
        except InputError as error:
            too_large[cell.name] = str(error)
    return fits, too_large


def _settings(folder: Path, corpus: Corpus, out: Path, budget: str | None, shares: int) -> dict[str, Any]:
    """How this report is made: those of an earlier call, if there was one."""
    there = out / f"{SETTINGS}.json"
    begun = any(file for part in ("cells", "runs") for file in (out / part).glob("*"))
    if there.is_file() and not begun:
        if read_json(there).get("corpus") != corpus.fingerprint():
            for measured in ("yardsticks", "costs"):
                (out / f"{measured}.json").unlink(missing_ok=True)
        there.unlink()  # last, so that nothing measured is left without it
    if there.is_file():
        settings = read_json(there)
        if settings.get("corpus") != corpus.fingerprint():
            raise InputError(f"{out} holds a report on another corpus; choose another --out")
        if budget is not None and budget != settings["budget"]:
            raise InputError(
                f"{out} was begun with --budget {settings['budget']}; leave it out to go on, or choose another --out"
            )
        return settings
    ours = ("yardsticks.json", "costs.json", "report.md", "results.json", "cells", "runs", "models")
    files = [file.name for file in out.glob("*")] if out.is_dir() else []
    strangers = sorted(name for name in files if not name.startswith(".") and name not in ours)
    if strangers:
        raise InputError(f"{out} also holds {strangers[0]!r}, no part of a report; choose another --out")
    minutes = in_minutes(budget or BUDGET) / (1 + BESIDE)
    return {
        "corpus": corpus.fingerprint(),
        "name": folder.resolve().name,
        "counts": corpus.counts(),
        "budget": budget or BUDGET,
        "minutes of a share": min(LONGEST, max(SHORTEST, minutes / max(1, shares))),
        "threads": torch.get_num_threads(),
    }


def _measure(lab: Lab, chosen: set[str], notice: Callable[[str], None]) -> None:
    """What takes no training."""
    if lab.kept("yardsticks") is None:
        notice("counting: popularity, co-occurrence")
        lab.keep("yardsticks", lab.yardsticks())
    if "costs" in chosen and lab.kept("costs") is None:
        notice("timing steps and queries")
        begin = time.monotonic()
        found: dict[str, Any] = {"steps": step_costs(lab.corpus), "queries": query_costs(lab.corpus)}
        lab.keep("costs", found | {"threads": torch.get_num_threads(), "seconds": time.monotonic() - begin})


def in_minutes(text: str) -> float:
    """A time as people write it.

    >>> in_minutes("3h"), in_minutes("1h30m"), in_minutes("45m"), in_minutes("20")
    (180.0, 90.0, 45.0, 20.0)
    """
    found = re.fullmatch(
        r"(?:(\d+(?:\.\d+)?)\s*h)?\s*(?:(\d+(?:\.\d+)?)\s*(?:m|min)?)?", text.strip().lower(), re.ASCII
    )
    minutes = 60 * float(found[1] or 0) + float(found[2] or 0) if found else 0.0
    if not 0 < minutes < 10**6:
        raise InputError(f"--budget {text!r} given; a time is allowed: 3h, 1h30m or 45m")
    return minutes


def _time(minutes: float) -> str:
    whole = round(minutes)
    return f"{whole} min" if whole < 90 else f"{whole // 60} h {whole % 60} min"


def _named(cell: Cell) -> str:
    return cell.name + (f", seed {cell.seed}" if cell.seed else "")
