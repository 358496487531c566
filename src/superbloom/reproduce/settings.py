"""The settings of a report, kept in its folder: the corpus, the time per model, the number of threads.

A later call in the same folder resumes with the same settings. It may not change the corpus or the budget once a model
has been trained.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.storage import MANIFESTS, read_json

SETTINGS = "settings"  # settings.json in the report's folder
REPORT_FILES = ("yardsticks.json", "costs.json", "report.md", "results.json", "cells", "runs", "models")
DEFAULT_BUDGET = "3h"
OVERHEAD = 0.12  # evaluation and plots, as a share of the training time
MIN_SHARE_MINUTES, MAX_SHARE_MINUTES = 0.01, 10**5
MAX_BUDGET_MINUTES = 10**6


def check_folder(out: Path) -> None:
    """Refuse a path that is a file, or a folder that holds a corpus or a model."""
    if out.is_file() or any((out / manifest).exists() for manifest in MANIFESTS.values()):
        raise InputError(f"{out} is a file, a corpus or a model folder; choose another --out for the report")


def settings_for(corpus_folder: Path, corpus: Corpus, out: Path, budget: str | None, shares: int) -> dict[str, Any]:
    """Return the settings of an earlier call in this folder, or new ones that divide the budget into shares."""
    path = out / f"{SETTINGS}.json"
    has_trained = any(file for part in ("cells", "runs") for file in (out / part).glob("*"))
    if path.is_file() and not has_trained:
        if read_json(path).get("corpus") != corpus.fingerprint():
            for measured in ("yardsticks", "costs"):
                (out / f"{measured}.json").unlink(missing_ok=True)
        path.unlink()  # last, so that no measurement is left without its settings
    if path.is_file():
        return _earlier(path, corpus, out, budget)
    files = [file.name for file in out.glob("*")] if out.is_dir() else []
    foreign = sorted(name for name in files if not name.startswith(".") and name not in REPORT_FILES)
    if foreign:
        raise InputError(f"{out} also holds {foreign[0]!r}, no part of a report; choose another --out")
    minutes = parse_minutes(budget or DEFAULT_BUDGET) / (1 + OVERHEAD)
    return {
        "corpus": corpus.fingerprint(),
        "name": corpus_folder.resolve().name,
        "counts": corpus.counts(),
        "budget": budget or DEFAULT_BUDGET,
        "minutes of a share": min(MAX_SHARE_MINUTES, max(MIN_SHARE_MINUTES, minutes / max(1, shares))),
        "threads": torch.get_num_threads(),
    }


def _earlier(path: Path, corpus: Corpus, out: Path, budget: str | None) -> dict[str, Any]:
    settings = read_json(path)
    if settings.get("corpus") != corpus.fingerprint():
        raise InputError(f"{out} holds a report on another corpus; choose another --out")
    if budget is not None and budget != settings["budget"]:
        raise InputError(
            f"{out} was begun with --budget {settings['budget']}; leave --budget out to resume, or choose another --out"
        )
    return settings


def parse_minutes(text: str) -> float:
    """Return the minutes of a time as people write it.

    >>> parse_minutes("3h"), parse_minutes("1h30m"), parse_minutes("45m"), parse_minutes("20")
    (180.0, 90.0, 45.0, 20.0)
    """
    found = re.fullmatch(
        r"(?:(\d+(?:\.\d+)?)\s*h)?\s*(?:(\d+(?:\.\d+)?)\s*(?:m|min)?)?", text.strip().lower(), re.ASCII
    )
    minutes = 60 * float(found[1] or 0) + float(found[2] or 0) if found else 0.0
    if not 0 < minutes < MAX_BUDGET_MINUTES:
        raise InputError(f"--budget {text!r} given; a time is allowed: 3h, 1h30m or 45m")
    return minutes


def duration(minutes: float) -> str:
    """Minutes as people read them.

    >>> duration(45), duration(100)
    ('45 min', '1 h 40 min')
    """
    whole = round(minutes)
    return f"{whole} min" if whole < 90 else f"{whole // 60} h {whole % 60} min"
