"""How benchmarks report: a table for people, then one JSON line with commit, hardware and versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def report(question: str, header: list[str], rows: list[list[str]], figures: dict[str, Any]) -> None:
    """Print a Markdown table and the JSON line that keeps its numbers."""
    print(f"{question}\n")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print("\n" + json.dumps({"figures": figures, **surroundings()}))


def surroundings() -> dict[str, Any]:
    here = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    packages = ("torch", "lightning", "pyarrow", "numpy")
    return {
        "commit": commit.stdout.strip(),
        "hardware": f"{os.cpu_count()} × {_processor()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
