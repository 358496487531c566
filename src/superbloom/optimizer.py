"""Adam that touches only what it must: of an embedding of which a step used some rows, those rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class RowAdam(torch.optim.AdamW):
    """torch's fused AdamW; of parameters with a sparse gradient, only the rows in it are updated.

    Moments and weight decay of the other rows wait until their turn comes, as in torch's SparseAdam. The state is the
    same as AdamW's, so that a checkpoint does not tell the two apart.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr, fused=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._update_rows(parameter, group)
                    parameter.grad = None
        super().step()
        return result

    def _update_rows(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        rows, values = grad.coalesce().indices()[0], grad.coalesce().values()
        (beta1, beta2), step = group["betas"], state["step"].item()
        first = state["exp_avg"][rows].lerp_(values, 1 - beta1)
        second = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = first, second
        scale = second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        decayed = parameter[rows] * (1 - group["lr"] * group["weight_decay"])
        parameter[rows] = decayed.addcdiv_(first, scale, value=-group["lr"] / (1 - beta1**step))


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
    torch._foreach_mul_(parts, torch.clamp(largest / (norm + 1e-6), max=1.0))
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
