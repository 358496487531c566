"""How likely is a name, given all that network and memory know about it? A small network learns it from held-out rows.

The weights of mixture.py are the same for every name. The ranker multiplies the probability that the mixture gives to a
name of the memory by a factor that depends on the evidence: a name that many elements of the context vote for may
deserve more, a name of the context where rows never repeat one deserves less. It sees held-out rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN = 32
EPOCHS = 30
BATCH_ROWS = 100
LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 0.01, 0.1, 0.1
CHECK_EVERY = 5  # every fifth row is held back; these rows decide after which epoch the ranker is taken
MIN_ROWS = 100  # different rows; fewer prove little, and there is no ranker
FIT_NAMES = 150  # names of each query that it learns from, those with the largest share
SMALLEST = 1e-4  # added to evidence before its logarithm is taken


@dataclass(frozen=True)
class Ranker:
    """log factor = x · direct + relu(x · hidden + bias) · out + offset, of features x."""

    direct: np.ndarray  # (features,)
    hidden: np.ndarray  # (features · units,), row after row
    bias: np.ndarray  # (units,)
    out: np.ndarray  # (units,)
    offset: np.ndarray  # (1,)
    known: np.ndarray  # (1,) int32, the number of names there were; later ones have ids from there on

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """The logarithm of the factor of each name, for features (…, features)."""
        x = features.astype(np.float64)
        inner = np.maximum(0, x @ self.hidden.reshape(len(self.direct), -1).astype(np.float64) + self.bias)
        return x @ self.direct.astype(np.float64) + inner @ self.out.astype(np.float64) + float(self.offset[0])

    def is_sound(self, features: int) -> bool:
        """Whether all sizes fit together, and all numbers are finite."""
        sizes = (features, features * len(self.bias), len(self.bias), len(self.bias), 1, 1)
        arrays = [getattr(self, field.name) for field in fields(self)]
        return tuple(map(len, arrays)) == sizes and all(bool(np.isfinite(array).all()) for array in arrays)


class Examples(NamedTuple):
    """Held-out elements to learn from: features and log mixture of names, and what the other names have together."""

    features: Tensor  # (rows, names, features)
    mixture: Tensor  # (rows, names); −inf fills
    target: Tensor  # (rows,) the column of the hidden name; −1 if it is none of the names
    rest: Tensor  # (rows,) the logarithm of the probability of all other names
    hidden: Tensor  # (rows,) the log-probability of the hidden name, if it is none of the names

    def at(self, rows: Tensor) -> Self:
        return type(self)(*(part[rows] for part in self))

    def single(self) -> Self:
        """The same in float32."""
        return type(self)(*(part if part.dtype == torch.int64 else part.float() for part in self))

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


def fit_ranker(examples: Examples, row: np.ndarray, known: int, seed: int = 0) -> Ranker | None:
    """The ranker under which hidden names are most likely; None if that is not more than without one.

    row (n,): the row that each example comes from. known: the number of names.
    """
    if len(np.unique(row)) < MIN_ROWS:
        return None
    number = torch.arange(len(examples.target))
    is_check = torch.from_numpy(row % CHECK_EVERY == 0)
    learned, check = examples.at(number[~is_check]), examples.at(number[is_check])
    there = learned.features[learned.mixture.isfinite()]
    centre, scale = there.mean(0), there.std(0) + 1e-3
    learned, check = (part._replace(features=(part.features - centre) / scale) for part in (learned, check))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        net = _Net(len(centre))
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        steps = -(-len(learned.target) // BATCH_ROWS)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * steps + 1)
        best, lowest = None, _loss(net, check)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(learned.target)).split(BATCH_ROWS):
                loss = negative_log_likelihood(net(learned.features[chosen]), learned.at(chosen)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            if (found := _loss(net, check)) < lowest:
                best, lowest = {name: value.clone() for name, value in net.state_dict().items()}, found
    if best is None:
        return None
    net.load_state_dict(best)
    return net.ranker(centre, scale, known)


def negative_log_likelihood(factors: Tensor, examples: Examples) -> Tensor:
    """−log p of each hidden name, (rows,), for log factors (rows, names)."""
    scores = torch.where(examples.mixture.isfinite(), examples.mixture + factors, -torch.inf)
    total = torch.cat([scores, examples.rest[:, None]], dim=1).logsumexp(1)
    own = scores.gather(1, examples.target.clamp(min=0)[:, None])[:, 0]
    return total - torch.where(examples.target >= 0, own, examples.hidden)


class _Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.direct, self.hidden, self.out = nn.Linear(features, 1), nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, 1)
        for layer in (self.direct, self.out):  # the first factors are 1
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, features: Tensor) -> Tensor:
        inner = self.dropout(self.hidden(features).relu())
        return (self.direct(features) + self.out(inner)).squeeze(-1)

    @torch.no_grad()
    def ranker(self, centre: Tensor, scale: Tensor, known: int) -> Ranker:
        """The same for features as they are, not centred and scaled."""
        direct, hidden = self.direct.weight[0] / scale, self.hidden.weight.T / scale[:, None]
        bias = self.hidden.bias - centre @ hidden
        offset = self.direct.bias + self.out.bias - centre @ direct
        arrays = (direct, hidden.flatten(), bias, self.out.weight[0], offset, torch.tensor([known], dtype=torch.int32))
        return Ranker(*(array.numpy() for array in arrays))


@torch.no_grad()
def _loss(net: _Net, examples: Examples) -> float:
    net.eval()
    found = float(negative_log_likelihood(net(examples.features), examples).mean())
    net.train()
    return found
