"""How long does RecTools' Dataset.construct take for a log?   python rectools_prepare.py events.csv

The log has user_id, item_id and ts (seconds); reading it and naming its columns as the library wants them are timed
apart. One JSON line at the end.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from measuring import highest
from rectools import Columns
from rectools.dataset import Dataset


def main(path: Path) -> None:
    start = time.perf_counter()
    events = pd.read_csv(path)
    events[Columns.Datetime] = pd.to_datetime(events.pop("ts"), unit="s")
    events[Columns.Weight] = 1.0
    read, cpu = time.perf_counter(), time.process_time()
    Dataset.construct(events)
    seconds = {"read seconds": read - start, "construct seconds": time.perf_counter() - read}
    seconds |= {"CPU read seconds": cpu, "CPU construct seconds": time.process_time() - cpu}
    print(json.dumps({**seconds, "peak GB": highest() / 1e3, "library": f"rectools {version('rectools')}"}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
