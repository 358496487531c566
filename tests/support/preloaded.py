"""Imports what the commands need, so that processes forked from the one that imported this start at once."""

import atexit
import gc
from importlib import import_module

COMMANDS = (
    "cli",
    "commands.train",
    "training.fit",
    "predict",
    "predict.recommend",
    "batch.local",
    "batch.sources",
    "batch.spark",
    "batch.tables",
    "evaluate.tables",
    "training.plan",
    "prepare.bundled",
    "model.extend",
    "store.card",
    "client",
    "evaluate",
)
COMMANDS += (
    "prepare.sequences",
    "prepare.interactions",
    "prepare.text",
    "prepare.wikipedia",
    "serve.server",
    "serve.app",
)
COMMANDS += (
    "reproduce.run",
    "reproduce.workbench",
    "reproduce.plots",
    "evaluate.yardsticks",
    "training.initialise",
    "hashing.coherent",
    "predict.explain",
)
# Libraries that commands import only when they need them.
LIBRARIES = ("torch.utils.tensorboard", "rich.live", "rich.table", "matplotlib.figure", "PIL.PngImagePlugin", "duckdb")
LIBRARIES += (
    "pyarrow.dataset",
    "pyarrow.csv",
    "pyarrow.parquet",
    "pandas",
    "pydantic",
    "tokenizers",
    "scipy.sparse.linalg",
)
LIBRARIES += (
    "numpy.ma",
    "uvicorn",
    "fastapi",
    "multiprocessing.pool",
    "pytest",
    "typer._adapters",
    "typer._click.decorators",
)

for name in (*(f"superbloom.{name}" for name in COMMANDS), *LIBRARIES):
    import_module(name)
gc.freeze()  # or each process would look through all of this for garbage
atexit.register(gc.unfreeze)
