"""Real processes that run a command, without the seconds it takes to import torch: a server that has it forks them."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUTPUT = "output.txt"  # in the folder a command runs in: what it printed


def start(folder: Path, *arguments: object, before: Callable[[], None] | None = None, **environment: object) -> Any:
    """A process that runs `superbloom ARGUMENTS` in a folder; `before` is called in it first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["superbloom.run", "superbloom.train", "superbloom.cli", "torch.utils.tensorboard"])
    process = context.Process(target=_run, args=(str(folder), list(map(str, arguments)), before, environment))
    process.start()
    return process


def start_together(folder: Path, processes: int, *arguments: object, **options: Any) -> list[Any]:
    """So many processes, told of each other as torchrun does it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": 0}
    common |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_WORLD_SIZE": 1}
    return [start(folder, *arguments, RANK=rank, LOCAL_RANK=rank, **common, **options) for rank in range(processes)]


def finish(folder: Path, *processes: Any) -> None:
    """Wait; every one has to end well."""
    for process in processes:
        process.join(timeout=300)
        assert process.exitcode == 0, (folder / OUTPUT).read_text()


def _run(folder: str, arguments: list[str], before: Callable[[], None] | None, environment: dict[str, object]) -> None:
    os.environ |= {name: str(value) for name, value in environment.items()}
    os.chdir(folder)
    import torch

    from superbloom.cli import main

    torch.set_num_threads(1)
    sys.argv = ["superbloom", *arguments]
    sys.stdout = sys.stderr = open(OUTPUT, "a", buffering=1)  # noqa: PTH123, SIM115
    if before is not None:
        before()
    main()
