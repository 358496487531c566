"""How benchmarks and checks report: a table for people, then one JSON line with commit, hardware and versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from superbloom.evaluate.tables import markdown


def report(question: str, header: list[str], rows: list[list[str]], figures: dict[str, Any]) -> None:
    """Print a Markdown table and the JSON line that keeps its numbers."""
    print(f"{question}\n\n{markdown(header, rows)}\n\n" + json.dumps({"figures": figures, **surroundings()}))


def between_marks(document: Path, tables: dict[str, str]) -> None:
    """Write each table between the marks of its name in a document; print those it has no marks for."""
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text:
            print(f"{name}\n\n{table}\n")
            continue
        before, rest = text.split(begin, 1)
        text = before + begin + table + "\n" + end + rest.split(end, 1)[1]
    document.write_text(text, encoding="utf-8")


def keep(path: Path, results: dict[str, Any]) -> None:
    """Write what was measured so far, whole or not at all."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(results | surroundings(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


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
