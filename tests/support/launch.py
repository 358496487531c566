"""Real processes without the seconds that importing torch takes: one process has imported it, and forks the others.

    done = command("inspect", "model", cwd=folder)          what `superbloom inspect model` prints
    process = start(folder, "serve", "model")               `superbloom serve model`, running
    done = python("import torch; print(…)", cwd=folder)     what a script prints
    with shell_path() as path: …                            a PATH on which bash finds such a `superbloom`

tests/commands/test_cli.py runs the installed command itself, as users start it.
"""

import json
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, reduction
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import pytest

OUTPUT = "output.txt"  # in the folder a command runs in: what it printed
TIMEOUT_SECONDS = 300.0
PRELOADED = "tests.support.preloaded"


def start(folder: Path, *arguments: object, before: Callable[[], None] | None = None, **environment: object) -> Any:
    """A process that runs `superbloom ARGUMENTS` in a folder; `before` is called in it first."""
    return _start(_run, str(folder), list(map(str, arguments)), before, environment)


def command(
    *arguments: object, cwd: str | Path = ".", code: int = 0, environment: dict[str, str] | None = None
) -> CompletedProcess[str]:
    """What `superbloom ARGUMENTS` prints, typed in a folder; it has to end with this exit code, without traceback."""
    words = list(map(str, arguments))
    done = _finished(_command, words, cwd=cwd, environment={"COLUMNS": "120"} | (environment or {}))
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def python(
    code: str,
    *arguments: object,
    cwd: str | Path = ".",
    given: str = "",
    environment: dict[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> CompletedProcess[str]:
    """What a script prints, as `python -c CODE ARGUMENTS` would, with `given` as its standard input.

    The modules of tests/support/preloaded.py are already imported, and take memory.
    """
    words = list(map(str, arguments))
    return _finished(_script, code, words, cwd=cwd, given=given, environment=environment, timeout=timeout)


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
        process.join(timeout=TIMEOUT_SECONDS)
        assert process.exitcode == 0, (folder / OUTPUT).read_text()


SHIM = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({address!r})
socket.send_fds(asked, [json.dumps([os.getcwd(), sys.argv[1:]]).encode()], [0, 1, 2])
sys.exit(int(asked.recv(100) or 1))
"""


@contextmanager
def shell_path() -> Iterator[str]:
    """A PATH whose `superbloom` hands its arguments, folder and files to a forked process, and ends as that does."""
    with TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listener:
        address, shim = f"{place}/socket", Path(place, "superbloom")
        listener.bind(address)
        listener.listen()
        shim.write_text(SHIM.format(python=sys.executable, address=address))
        shim.chmod(0o755)
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield os.pathsep.join([place, str(Path(sys.executable).parent), os.environ["PATH"]])
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:
            return  # it was shut down
        threading.Thread(target=_answer, args=(asked,), daemon=True).start()


def _answer(asked: socket.socket) -> None:
    with asked:
        message, files, _, _ = socket.recv_fds(asked, 2**16, 3)
        folder, words = json.loads(message)
        process = _start(_with_files, [_Handle(file) for file in files], folder, {}, _command, (words,))
        for file in files:
            os.close(file)
        process.join()
        asked.send(str(process.exitcode).encode())


class _Handle:
    """An open file that is handed to another process."""

    def __init__(self, file: int) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.file),)


def _received(handle: Any) -> int:
    return int(handle.detach())


def _start(function: Callable[..., None], *arguments: Any) -> Any:
    process = _context().Process(target=function, args=arguments)
    process.start()
    return process


def _finished(
    function: Callable[..., None],
    *arguments: Any,
    cwd: str | Path,
    given: str = "",
    environment: dict[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> CompletedProcess[str]:
    """What a function prints in a process of its own, and its exit code."""
    with TemporaryDirectory() as place:
        names = [Path(place, name) for name in ("in", "out", "err")]
        names[0].write_text(given)
        files = [os.open(name, os.O_RDWR | os.O_CREAT) for name in names]
        try:
            handles = [_Handle(file) for file in files]
            process = _start(_with_files, handles, str(Path(cwd).resolve()), environment or {}, function, arguments)
        finally:
            for file in files:
                os.close(file)
        process.join(timeout=timeout)
        if process.exitcode is None:
            process.kill()  # or Python would wait for it at its own end
            raise TimeoutExpired(str(arguments), timeout)
        return CompletedProcess(arguments, process.exitcode, *(name.read_text() for name in names[1:]))


@cache
def _context() -> Any:
    """Starts the process that forks the others, with what they import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


def _with_files(
    files: list[int], folder: str, environment: dict[str, str], function: Callable[..., None], arguments: Any
) -> None:
    """In the process: run a function with these standard files."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ |= {"OMP_NUM_THREADS": "1"} | environment
    os.chdir(folder)
    # The buffers of sys.stdout belong to the files that were there before.
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115
    try:
        function(*arguments)
    finally:
        sys.stdout.flush()


def _command(words: list[str]) -> None:
    assert PRELOADED in sys.modules, f"the process that forks this one could not import {PRELOADED}"
    import torch

    from superbloom.cli import main

    torch.set_num_threads(1)
    sys.argv = ["superbloom", *words]
    main()


def _script(code: str, words: list[str]) -> None:
    sys.argv = ["-c", *words]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _run(folder: str, arguments: list[str], before: Callable[[], None] | None, environment: dict[str, object]) -> None:
    os.environ |= {name: str(value) for name, value in environment.items()}
    os.chdir(folder)
    sys.stdout = sys.stderr = open(OUTPUT, "a", buffering=1)  # noqa: PTH123, SIM115
    if before is not None:
        before()
    _command(arguments)
