"""Real processes that run a command, without the seconds it takes to import torch: a server that has it forks them."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

OUTPUT = "output.txt"  # in the folder a command runs in: what it printed


def start(folder: Path, *arguments: object, before: Callable[[], None] | None = None, **environment: object) -> Any:
    """A process that runs `superbloom ARGUMENTS` in a folder; `before` is called in it first."""
    process = _context().Process(target=_run, args=(str(folder), list(map(str, arguments)), before, environment))
    process.start()
    return process


def command(*arguments: object, cwd: str | Path = ".", code: int = 0) -> CompletedProcess[str]:
    """What `superbloom ARGUMENTS` prints, typed in a folder; it has to end with this exit code, without traceback."""
    with TemporaryDirectory() as place:
        outputs = [f"{place}/out", f"{place}/err"]
        process = _context().Process(
            target=_print_to, args=(outputs, str(Path(cwd).resolve()), list(map(str, arguments)))
        )
        process.start()
        process.join(timeout=300)
        if process.exitcode is None:
            process.kill()  # or Python would wait for it at its own end
            raise AssertionError(f"{arguments} does not end")
        done = CompletedProcess(arguments, process.exitcode, *(Path(file).read_text() for file in outputs))
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


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


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["superbloom.run", "superbloom.train", "superbloom.cli", "torch.utils.tensorboard"])
    return context


def _print_to(outputs: list[str], folder: str, arguments: list[str]) -> None:
    for number, file in enumerate(outputs, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    _run(folder, arguments, None, {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}, output=None)


def _run(
    folder: str,
    arguments: list[str],
    before: Callable[[], None] | None,
    environment: dict[str, object],
    output: str | None = OUTPUT,
) -> None:
    os.environ |= {name: str(value) for name, value in environment.items()}
    os.chdir(folder)
    import torch

    from superbloom.cli import main

    torch.set_num_threads(1)
    sys.argv = ["superbloom", *arguments]
    if output is not None:
        sys.stdout = sys.stderr = open(output, "a", buffering=1)  # noqa: PTH123, SIM115
    if before is not None:
        before()
    main()
