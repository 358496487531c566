"""Adam that touches only what it must, of an embedding the rows a step used; and the running average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SOON = 10  # steps: after as many, what was before counts for half of the average


class RowAdam(torch.optim.AdamW):
    """torch's fused AdamW; of the parameters in by_row, only rows with a gradient are updated.

    Moments and weight decay of the other rows wait until their turn comes, as in torch's SparseAdam. Their gradients
    may be sparse, or dense as the sum over several processes is: the rows are the same. So is the state to AdamW's.

    With average, a running mean of the weights is kept beside the moments, into which each step enters with a share of
    1 − average (more in the beginning). It answers better than the weights of any step (docs/speedrun.md), and is there
    at any time, where a learning rate that falls to nothing has to know the end. It takes in all rows, so it is no
    company for by_row.
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
        share = max(1 - self.average, SOON / (SOON + steps))
        for parameter, state in self.state.items():
            if "average" not in state:
                state["average"] = parameter.detach().clone()
        averages = [_local(state["average"]) for state in self.state.values()]
        torch._foreach_lerp_(averages, [_local(parameter.detach()) for parameter in self.state], share)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Without an average, one kept before is forgotten: it would stand still and be taken for the model."""
        super().load_state_dict(state_dict)
        if not self.average:
            for state in self.state.values():
                state.pop("average", None)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While it lasts, parameters have their averages."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Trade the weights for their averages."""
        for parameter, state in self.state.items():
            if "average" in state and hasattr(parameter, "to_local"):  # a share, which is known by its place in memory
                current = _local(parameter).clone()
                _local(parameter).copy_(_local(state["average"]))
                _local(state["average"]).copy_(current)
            elif "average" in state:  # traded, not copied: no room is needed for a third
                parameter.data, state["average"] = state["average"], parameter.data

    def _update_rows(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        # Of a sharded parameter, each process has some rows of all of them.
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
    """The rows that have a gradient, and those gradients."""
    if grad.is_sparse:
        grad = grad.coalesce()
        used = grad.values().any(dim=1)
        return grad.indices()[0, used], grad.values()[used]
    rows = grad.any(dim=1).nonzero().squeeze(1)
    return rows, grad[rows]


def clip(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale gradients so that their norm is `largest` at most; returns the norm it was."""
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
