"""Real data that is not in the repository: dumps, logs and texts in the folder that SUPERBLOOM_DATA names."""

import os
from pathlib import Path

import pytest


def real_data(*parts: str) -> Path:
    """The path of a file or folder of the real data; skips the test if it is absent.

    real_data("wiki", "enwik8.xz") is SUPERBLOOM_DATA/wiki/enwik8.xz
    """
    folder, name = os.environ.get("SUPERBLOOM_DATA"), "/".join(parts)
    if not folder:
        pytest.skip(f"needs {name}: set SUPERBLOOM_DATA to the folder of the real data")
    path = Path(folder, *parts)
    if not path.exists():
        pytest.skip(f"needs {name}, which is not in SUPERBLOOM_DATA={folder}")
    return path
