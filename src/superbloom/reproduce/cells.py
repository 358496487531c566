"""Which models are trained, for which part of the report. A cell is one of them, with one seed.

The paper compares models of equal size on catalogues of millions. Here the hashed model is as wide as our default, and
what is to be of its size is made as wide as that takes.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from superbloom.api import Superbloom
from superbloom.config import RECIPES
from superbloom.corpus import Corpus
from superbloom.hashing import max_alpha
from superbloom.training.limits import num_parameters

WIDTH = 128
ALPHAS = (10, 20)  # of Table 7
# Of Tables 2, 3 and 6, up to so many ids; the paper has 20 for half a million, 50 for all of Wikipedia.
ALPHA_UP_TO = {10: 100_000, 20: 1_000_000, 50: 2**63}
DEEP = 4  # layers, where the paper has 12
LARGER = 2 * WIDTH  # of the model with the sampled softmax
NEGATIVES = 0.025  # of the ids
SAMPLERS: dict[str, dict[str, Any]] = {
    "log-uniform": {"proposal": "log-uniform"},
    "empirical": {"proposal": "empirical"},
    "empirical, half the rate": {"proposal": "empirical", "learning_rate": 1e-3},
}
SENSITIVITY_ALPHAS, SENSITIVITY_HASHES = (1, 2, 4, 10, 20, 50), (1, 2, 3, 4)
UNHASHED = {"num_hashes": 1, "alpha": 1}
WIDTHS = range(4, 2049, 4)
# Unhashed width, its heads, alpha of the hashed model of its size; the rows of Table 4 they stand for.
TEXT_PAIRS = ((16, 4, 40, ("baseline-h64", "hash40-h512")), (32, 4, 20, ("baseline-h256", "hash20-h1024")))
# The paper's way to read: tokens apart, as a set, one softmax over the tokens of all hashes. Start, masks and optimizer
# stay ours: from noise, minutes are not enough to learn anything by which depth could be judged.
AS_A_SET = {"distance": False, "positions": False}
PAPER = {"spread": False, "inputs": "tokens", "softmax": "joint"} | AS_A_SET
AS_IN_PAPER = "paper: "
PARTS = ("table2", "figure3", "table3", "table5", "table6", "table7", "costs", "examples", "sensitivity")
ALIASES = {"table1": "table2", "table4": "table5"}
OF_TEXT = ("table5", "examples")
OF_ENTITIES = tuple(part for part in PARTS if part != "table5")


@dataclass(frozen=True)
class Cell:
    """A model to train: for which parts, and how many shares of the time it gets."""

    name: str
    parts: tuple[str, ...]
    model: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    shares: int = 2
    seed: int = 0

    @property
    def file(self) -> str:
        """A name for its files.

        >>> Cell("α=10, m=2", (), {}, seed=1).file
        'α10-m2-seed1'
        """
        return re.sub(r"[^\w]+", "-", self.name.replace("=", "")).strip("-") + f"-seed{self.seed}"


class Shapes:
    """Options of models for one corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.base: dict[str, Any] = dict(RECIPES["sequence"][0]) if corpus.is_ordered else {}
        if corpus.vocab.is_text:
            self.base = dict(RECIPES["text"][0])
        sizes = (corpus.num_ids, len(corpus.target_vocab or corpus.vocab))
        self.most = {m: min(max_alpha(size, m) for size in sizes) for m in SENSITIVITY_HASHES}
        wanted = next(alpha for alpha, ids in ALPHA_UP_TO.items() if corpus.num_ids <= ids)
        self.alpha = min(wanted, self.most[2])

    def __call__(self, dim: int = WIDTH, **options: Any) -> dict[str, Any]:
        return self.base | {"dim": dim, "ffn_dim": 4 * dim} | options

    def parameters(self, options: dict[str, Any]) -> int:
        return num_parameters(Superbloom(**options).config_for(self.corpus))

    def sized(self, target: int, options: dict[str, Any], widths: Sequence[int] = WIDTHS) -> dict[str, Any]:
        """These options with the width that comes closest to so many parameters."""
        above = bisect.bisect_left(widths, target, key=lambda dim: self.parameters(self(dim, **options)))
        near = widths[max(0, above - 1) : above + 1]
        found = min(near, key=lambda dim: abs(self.parameters(self(dim, **options)) - target))
        return self(found, **options)


def cells(corpus: Corpus, seeds: int = 1) -> list[Cell]:
    """All cells of a corpus, in the order they are trained; Tables 2, 3 and 5 are repeated with other seeds."""
    shapes = Shapes(corpus)
    found = _of_text(shapes) if corpus.vocab.is_text else _of_entities(shapes)
    repeated = [cell for cell in found if {"table2", "table3", "table5"} & {*cell.parts}]
    return found + [
        replace(cell, seed=seed, model=cell.model | {"hash_seed": seed})
        for seed in range(1, seeds)
        for cell in repeated
    ]


def _of_entities(shapes: Shapes) -> list[Cell]:
    hashed = {"alpha": shapes.alpha, "num_hashes": 2}
    superbloom = shapes(**hashed)
    size = shapes.parameters(superbloom)
    samples = max(1, round(NEGATIVES * len(shapes.corpus.target_vocab or shapes.corpus.vocab)))
    sampled = shapes(LARGER, **UNHASHED)
    found = [
        Cell("superbloom", ("table2", "figure3", "table6", "table7", "examples"), superbloom),
        Cell("baseline", ("table2", "figure3"), shapes.sized(size, UNHASHED)),
    ]
    for sampler, options in SAMPLERS.items():
        training = {"loss": "sampled", "samples": samples, **options}
        found.append(Cell(f"sampled-softmax, {sampler}", ("table2",), sampled, training))
    deep = shapes(**hashed, layers=DEEP)
    depth = {
        "baseline-l1": shapes(**UNHASHED, layers=1),
        "baseline-deep": shapes(**UNHASHED, layers=DEEP),
        "superbloom-l1": shapes(**hashed, layers=1),
        "superbloom-wide-l1": shapes.sized(shapes.parameters(deep), hashed | {"layers": 1}),
        "superbloom-deep": deep,
    }
    unordered = {"layers": 1} | AS_A_SET
    bag = unordered | {"attend": False}
    bags = {"baseline-bag": shapes(**UNHASHED | bag), "superbloom-bag": shapes(**hashed | bag)}
    bags["superbloom-set-l1"] = shapes(**hashed | unordered)
    found += [Cell(name, ("table3",), options, shares=_shares(name)) for name, options in (depth | bags).items()]
    for as_in_paper in ("superbloom", "baseline", *depth):
        options = next(cell.model for cell in found if cell.name == as_in_paper)
        part = "table3" if as_in_paper in depth else "table2"
        found.append(Cell(AS_IN_PAPER + as_in_paper, (part,), options | PAPER, shares=_shares(as_in_paper)))
    for alpha in [a for a in ALPHAS if a <= shapes.most[2]]:
        for coherent in range(alpha == found[0].model["alpha"], 3):  # of these, "superbloom" has none
            options = shapes(alpha=alpha, num_hashes=2, coherent=coherent)
            found.append(Cell(f"hash{alpha}-{coherent}", ("table7",), options))
    whole = shapes.parameters(shapes(alpha=min(4, shapes.most[2]), num_hashes=2))
    for alpha in SENSITIVITY_ALPHAS:
        for m in SENSITIVITY_HASHES:
            if alpha <= shapes.most[m]:
                options = shapes.sized(whole, {"alpha": alpha, "num_hashes": m})
                found.append(Cell(f"α={alpha}, m={m}", ("sensitivity",), options, shares=1))
    return found


def _shares(name: str) -> int:
    """Deep models, and the wide ones of their size, get twice the time: the paper compares them near convergence."""
    return 4 if name in ("superbloom-deep", "superbloom-wide-l1", "baseline-deep") else 2


def _of_text(shapes: Shapes) -> list[Cell]:
    """Small stand-ins of Table 4's pairs: unhashed ones are narrow, hashed ones as wide as gives the same size."""
    training = RECIPES["text"][1]
    found = []
    for width, heads, alpha, _ in TEXT_PAIRS:
        narrow = shapes(width, **UNHASHED, heads=heads)
        hashed = {"alpha": min(alpha, shapes.most[2]), "num_hashes": 2}
        wide = shapes.sized(shapes.parameters(narrow), hashed, WIDTHS[1::2])
        for name, options in ((f"baseline-h{width}", narrow), (f"hash{wide['alpha']}-h{wide['dim']}", wide)):
            found.append(Cell(name, OF_TEXT, options, training))
    return found
