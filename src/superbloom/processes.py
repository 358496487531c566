"""One of several processes: which one this is, how many there are, and what ends them (docs/scale.md).

`train --devices N` starts N processes on this machine; torchrun and SLURM start them on many. Every one of them
runs the same command. The main process alone writes, prints and evaluates.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from superbloom.errors import InputError

if TYPE_CHECKING:
    import lightning as L


LOCK = ".lock"
# How a process is told its rank, and by what it can tell that it was told.
RANKS = (("RANK", "TORCHELASTIC_RUN_ID"), ("SLURM_PROCID", "SLURM_NTASKS"), ("LOCAL_RANK", "LOCAL_RANK"))


def main_process() -> bool:
    """Whether this is the process that writes and prints; known before the processes have found each other."""
    return not any(int(os.environ.get(rank) or 0) for rank, sign in RANKS if sign in os.environ)


def placement(devices: int | None, strategy: str, batch_size: int) -> dict[str, Any]:
    """What Lightning's Trainer has to be told: as torchrun or SLURM started us, else `devices` on this machine."""
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    here, nodes, plugins = devices or 1, 1, []
    if TorchElasticEnvironment.detect():
        here, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    elif SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        here, uneven = divmod(int(os.environ["SLURM_NTASKS"]), nodes)
        if here * nodes > 1 and (uneven or "SLURM_NTASKS_PER_NODE" not in os.environ):
            raise InputError("SLURM was not told how many tasks each machine has; start with srun --ntasks-per-node")
        plugins = [SLURMEnvironment(auto_requeue=False)]  # its checkpoints would be others than ours
    if devices not in (None, here):
        raise InputError(f"devices={devices}, but {here} processes were started on each machine; leave it out")
    world = here * nodes
    if batch_size % world:
        raise InputError(f"batch_size={batch_size} does not divide among {world} processes; choose a multiple")
    chosen: Any = "auto"
    if world > 1:
        # Whole checkpoints, not a shard a process: they can be resumed with any number of processes.
        chosen = (
            ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False)
            if strategy == "fsdp"
            else DDPStrategy(gradient_as_bucket_view=True)
        )
    return {"devices": here, "num_nodes": nodes, "strategy": chosen, "plugins": plugins}


MOST_TRIES = 100  # to get a lock file that is not being removed

_held: dict[Path, IO[str]] = {}  # locks of this process


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """Keep other trainings out of a run folder; whatever ends this process, it is free again."""
    if not main_process():
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
    with locked(run / LOCK, f"another process is training in {run}; wait for it, or choose another --out"):
        yield


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file until the block or the process ends; InputError, saying what is busy, if another one does."""
    with _lock(path, busy) as file:
        _held[path] = file
        try:
            yield
        finally:
            _held.pop(path, None)


def holds(path: Path) -> bool:
    """Whether this process has that lock already."""
    return path in _held


def _lock(path: Path, busy: str) -> IO[str]:
    for _ in range(MOST_TRIES):
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(busy) from None
        except OSError:  # a file system without locks: there, nobody can be told
            return file
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # subtle: who held it has just removed it, and another process may hold the next one already
    raise InputError(busy)


def _open(path: Path) -> IO[str]:
    """A lock file; not through a link, as in a folder that came from elsewhere it may lead anywhere."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:  # left by another user's process that was killed; to lock it, reading is enough
        if not path.exists():
            raise
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return os.fdopen(number)


def agree(trainer: L.Trainer, *values: int) -> list[int]:
    """The largest of each value over all processes, so that all of them stop, or validate, at the same step."""
    if trainer.world_size == 1:
        return list(values)
    import torch

    together = torch.tensor(values, dtype=torch.int32, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(together, op=torch.distributed.ReduceOp.MAX)
    return together.tolist()


def part() -> None:
    """Leave the other processes, if there are any. Without, one exit in six aborts."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Stop:
    """Ctrl-C, and SIGTERM if `terminate`, ask training to stop after its step; a second Ctrl-C ends it at once.

    While it is entered, `signal` is the one that asked, 0 as long as none did.
    """

    def __init__(self, terminate: bool) -> None:
        self.signal = 0
        self._heard = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.listen()
        return self

    def listen(self) -> None:
        """Also to be called once Lightning has put handlers of its own in place."""
        for number, handler in self._before.items():
            signal.signal(number, self._handle if number in self._heard else handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        self.signal = max(self.signal, number)
        again = ""
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])
            again = "; Ctrl-C again ends at once, without saving"
        if main_process():
            os.write(2, f"\nstopping after this step{again}\n".encode())  # not print: this interrupts anything


def only_work(_: int = 0) -> None:
    """For processes that make batches: what stops training is not theirs to handle, nor its run folder to hold."""
    for file in _held.values():
        file.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
