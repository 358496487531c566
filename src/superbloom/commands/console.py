"""What commands print."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def command() -> str:
    """How to call this program again from here: by name where the shell finds it, else by its path."""
    if shutil.which("superbloom"):
        return "superbloom"
    return "python -m superbloom" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
