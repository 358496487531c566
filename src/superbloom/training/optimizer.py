"""The optimizer (Sec. 3.2): Adam that updates only the rows a step used, a running average of the weights, gradient
clipping, and the learning rate's schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

AVERAGE_WARMUP_STEPS = 10  # after 10 steps the weights before them count for half of the average


class RowAdam(torch.optim.AdamW):
    """torch's fused AdamW. For the parameters in by_row, only rows with a gradient are updated.

    The moments and the weight decay of the other rows wait until they have a gradient, as in torch's SparseAdam. The
    gradients of by_row parameters may be sparse, or dense as the sum over several processes is: both give the same
    rows. The state has the form of AdamW's.

    With average, the state also holds a running mean of the weights. Each step enters it with a share of 1 − average,
    and with more in the beginning. The mean predicts better than the weights of any single step (docs/training.md). It
    is available at any time, while a learning rate that decays to zero has to know the last step. It covers all rows,
    so average and by_row exclude each other.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, by_row: Sequence[nn.Parameter] = (), average: float = 0.0
    ) -> None:
        super().__init__(parameters, lr=lr, fused=True)
        self.by_row = [id(parameter) for parameter in by_row]
        self.average = average

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) in self.by_row:
                    self._update_rows(parameter, group)
                    parameter.grad = None
        super().step()
        if self.average and self.state:
            self._update_average()
        return result

    def _update_average(self) -> None:
        steps = float(next(iter(self.state.values()))["step"])
        share = max(1 - self.average, AVERAGE_WARMUP_STEPS / (AVERAGE_WARMUP_STEPS + steps))
        for parameter, state in self.state.items():
            if "average" not in state:
                state["average"] = parameter.detach().clone()
        averages = [_local(state["average"]) for state in self.state.values()]
        torch._foreach_lerp_(averages, [_local(parameter.detach()) for parameter in self.state], share)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also drop a stored average if none is wanted now: it would no longer change, but would become the model."""
        super().load_state_dict(state_dict)
        if not self.average:
            for state in self.state.values():
                state.pop("average", None)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block, the parameters are their averages."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the weights and their averages."""
        for parameter, state in self.state.items():
            if "average" in state and hasattr(parameter, "to_local"):  # sharded: FSDP refers to this memory, so copy
                current = _local(parameter).clone()
                _local(parameter).copy_(_local(state["average"]))
                _local(state["average"]).copy_(current)
            elif "average" in state:  # exchanged, not copied: no memory for a third set is needed
                parameter.data, state["average"] = state["average"], parameter.data

    def _update_rows(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        # Each process holds some rows of a sharded parameter and of its state.
        table, moment, square, grad = map(_local, (parameter, state["exp_avg"], state["exp_avg_sq"], grad))
        rows, values = _rows(grad)
        (beta1, beta2), step = group["betas"], state["step"].item()
        first = moment[rows].lerp_(values, 1 - beta1)
        second = square[rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
        moment[rows], square[rows] = first, second
        scale = second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        decayed = table[rows] * (1 - group["lr"] * group["weight_decay"])
        table[rows] = decayed.addcdiv_(first, scale, value=-group["lr"] / (1 - beta1**step))


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the rows that have a gradient, and their gradients."""
    if grad.is_sparse:
        grad = grad.coalesce()
        used = grad.values().any(dim=1)
        return grad.indices()[0, used], grad.values()[used]
    rows = grad.any(dim=1).nonzero().squeeze(1)
    return rows, grad[rows]


def clip(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale gradients so that their norm is at most `largest`. Returns the norm before."""
    parts: list[Tensor] = []
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.is_sparse:
            parameter.grad = grad = grad.coalesce()
            parts.append(grad.values())
        elif grad is not None:
            parts.append(grad)
    norm = nn.utils.get_total_norm(parts)
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    for part in parts:
        part.mul_(scale)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def inverse_root(step: int, warmup: int) -> float:
    """The factor on the learning rate: rises during the warm-up, then falls with the square root of the step.

    >>> [round(inverse_root(step, warmup=100), 2) for step in (0, 49, 99, 399)]
    [0.01, 0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def cooled(done: float, cooldown: float) -> float:
    """The factor on the learning rate when a share of the training is done: it falls to 0 in the last part, cooldown.

    >>> [cooled(done, cooldown=0.5) for done in (0.0, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, (1 - min(1.0, done)) / cooldown) if cooldown else 1.0
