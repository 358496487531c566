"""Training in several processes: what Lightning starts, and what the processes agree on (docs/scale.md)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superbloom.errors import InputError
from superbloom.runtime import main_process
from superbloom.storage import close_inherited_locks, locked

if TYPE_CHECKING:
    import lightning as L

RUN_LOCK = ".lock"


def placement(devices: int | None, strategy: str, batch_size: int) -> dict[str, Any]:
    """Options of Lightning's Trainer: the processes that torchrun or SLURM started, else `devices` on this machine."""
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


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Lock a run folder against other trainings until the block or the process ends."""
    if not main_process():
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
    with locked(run / RUN_LOCK, f"another process is training in {run}; wait for it, or choose another --out"):
        yield


def agree(trainer: L.Trainer, *values: int) -> list[int]:
    """The largest of each value over all processes, so that all processes stop or validate at the same step."""
    if trainer.world_size == 1:
        return list(values)
    import torch

    together = torch.tensor(values, dtype=torch.int32, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(together, op=torch.distributed.ReduceOp.MAX)
    return together.tolist()


def leave_process_group() -> None:
    """Leave the process group, if there is one. Otherwise about one exit in six aborts."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def detach_worker(_: int = 0) -> None:
    """Prepare a worker process that makes batches: it ignores Ctrl-C and holds no lock of the training process."""
    close_inherited_locks()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_coherent_threads(coherent: int, devices: int | None) -> None:
    """Raise InputError if several processes might build different coherent hash functions.

    Every process builds its own, and the number of threads decides how the factorisation is rounded. torchrun sets
    that number for all processes.
    """
    started = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "SLURM_NTASKS"))
    several = max(devices or 1, *started) > 1
    if several and "OMP_NUM_THREADS" not in os.environ:
        raise InputError(
            f"coherent={coherent} in several processes: set OMP_NUM_THREADS=1, so that all build the same functions"
        )
