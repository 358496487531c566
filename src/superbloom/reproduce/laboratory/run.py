"""`superbloom reproduce --lab`: train and measure the models that are left, write the report after each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from superbloom.errors import InputError
from superbloom.reproduce.laboratory.bench import LabBench
from superbloom.reproduce.laboratory.cells import LAB_PARTS, WORLDS, LabCell, lab_cells
from superbloom.reproduce.laboratory.report import PICTURES, write_report
from superbloom.reproduce.settings import (
    DEFAULT_BUDGET,
    OVERHEAD,
    REPORT_FILES,
    SETTINGS,
    check_folder,
    duration,
    parse_minutes,
)
from superbloom.reproduce.workbench import keep
from superbloom.storage import read_json
from superbloom.training.run_folder import lock_run

LAB = "a laboratory"  # in the settings of its folder
DEFAULT_SEEDS = 3


def reproduce_lab(
    out: Path,
    *,
    only: Sequence[str] = (),
    budget: str | None = None,
    seeds: int = DEFAULT_SEEDS,
    quiet: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Decide the paper's claims in made-up worlds; resumes an earlier call in this folder."""
    parts = _chosen_parts(only)
    check_folder(out)
    wanted = lab_cells(parts, seeds)
    with lock_run(out):
        settings = _settings(out, budget, sum(cell.shares for cell in wanted))
        keep(out, SETTINGS, settings)
        share_minutes = settings["minutes of a share"]
        benches: dict[str, LabBench] = {}
        done = 0
        for number, cell in enumerate(wanted):
            if cell.world not in benches:
                notice(f"the world “{cell.world}”: drawing {WORLDS[cell.world].rows:,} rows, or opening them")
                benches[cell.world] = LabBench.of_world(cell.world, WORLDS[cell.world], out, share_minutes)
            bench = benches[cell.world]
            if bench.result(cell) is None:
                most = duration(sum(share_minutes * left.shares for left in wanted[number:]) * (1 + OVERHEAD))
                notice(
                    f"[{number + 1}/{len(wanted)}] {_label(cell)}: at most {bench.minutes(cell):.1f} min; {most} left"
                )
                if not bench.attempt(cell, _label(cell), quiet, notice):
                    break
                write_report(out)
            done += bench.result(cell) is not None
            shutil.rmtree(bench.run_of(cell), ignore_errors=True)
        write_report(out)
    return {"report": str(out / "report.md"), "cells": len(wanted), "done": done}


def _chosen_parts(only: Sequence[str]) -> set[str]:
    asked = [name for word in only for name in re.split(r"[,\s]+", word) if name]
    for name in asked:
        if name not in LAB_PARTS:
            raise InputError(f"--only {name} given with --lab; {', '.join(LAB_PARTS)} are allowed")
    return set(asked or LAB_PARTS)


def _settings(out: Path, budget: str | None, shares: int) -> dict[str, Any]:
    """Return the settings of an earlier call in this folder, or new ones that divide the budget into shares."""
    path = out / f"{SETTINGS}.json"
    has_trained = any(file for part in ("cells", "runs") for file in (out / part).glob("*"))
    settings: dict[str, Any] = read_json(path) if path.is_file() else {}
    if settings and (has_trained or settings.get("corpus") != LAB):
        if settings.get("corpus") != LAB:
            raise InputError(f"{out} holds a report on a corpus; choose another --out for --lab")
        if budget is not None and budget != settings["budget"]:
            raise InputError(
                f"{out} was begun with --budget {settings['budget']}; leave --budget out to resume, or choose another "
                "--out"
            )
        return settings
    known = {*REPORT_FILES, *PICTURES, path.name, "worlds"}
    if foreign := sorted(
        file.name for file in out.glob("*") if not file.name.startswith(".") and file.name not in known
    ):
        raise InputError(f"{out} also holds {foreign[0]!r}, no part of a report; choose another --out")
    minutes = parse_minutes(budget or DEFAULT_BUDGET) / (1 + OVERHEAD) / max(1, shares)
    return {
        "corpus": LAB,
        "budget": budget or DEFAULT_BUDGET,
        "minutes of a share": minutes,
        "threads": torch.get_num_threads(),
    }


def _label(cell: LabCell) -> str:
    return cell.name + (f", seed {cell.seed}" if cell.seed else "")
