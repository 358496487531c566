"""Training in several processes: how Lightning starts them, and how they take the same decisions (docs/scale.md)."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from superbloom.errors import InputError
from superbloom.storage import close_inherited_locks

if TYPE_CHECKING:
    import lightning as L


def placement(devices: int | None, strategy: str, batch_size: int) -> dict[str, Any]:
    """Options of Lightning's Trainer.

    Training uses the processes that torchrun or SLURM started, otherwise `devices` processes on this machine. Raises
    InputError if `devices` contradicts them, or if batch_size does not divide among all processes.
    """
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
            raise InputError("SLURM does not say how many tasks each machine has; start with srun --ntasks-per-node")
        plugins = [SLURMEnvironment(auto_requeue=False)]  # a requeue would save checkpoints that are not ours
    if devices not in (None, here):
        raise InputError(f"devices={devices}, but {here} processes were started on each machine; leave it out")
    world = here * nodes
    if batch_size % world:
        raise InputError(f"batch_size={batch_size} does not divide among {world} processes; choose a multiple")
    chosen: Any = "auto"
    if world > 1:
        # Whole checkpoints instead of one shard per process can be resumed with any number of processes.
        chosen = (
            ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False)
            if strategy == "fsdp"
            else DDPStrategy(gradient_as_bucket_view=True)
        )
    return {"devices": here, "num_nodes": nodes, "strategy": chosen, "plugins": plugins}


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

    Every process builds its own hash functions. The number of threads decides how the factorisation is rounded, so all
    processes need the same number. torchrun sets it for all of them.
    """
    started = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "SLURM_NTASKS"))
    several = max(devices or 1, *started) > 1
    if several and "OMP_NUM_THREADS" not in os.environ:
        raise InputError(
            f"coherent={coherent} in several processes: set OMP_NUM_THREADS=1, so that all build the same functions"
        )
