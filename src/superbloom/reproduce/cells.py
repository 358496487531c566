"""Which models are trained, for which part of the report. A cell is one model with one seed.

The paper compares models of equal size on catalogues of millions of ids. Here the hashed model has our default width.
Models that must have its size get the width that comes closest.
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

DIM = 128
COHERENT_ALPHAS = (10, 20)  # in Table 7
# α of Tables 2, 3 and 6: the largest catalogue for each. The paper has 20 for half a million ids, 50 for Wikipedia.
MAX_IDS_BY_ALPHA = {10: 100_000, 20: 1_000_000, 50: 2**63}
DEEP_LAYERS = 4  # the paper has 12
SAMPLED_DIM = 2 * DIM  # width of the model with the sampled softmax
NEGATIVES_SHARE = 0.025  # of the ids, drawn as negatives of the sampled softmax
SAMPLERS: dict[str, dict[str, Any]] = {
    "log-uniform": {"proposal": "log-uniform"},
    "empirical": {"proposal": "empirical"},
    "empirical, half the rate": {"proposal": "empirical", "learning_rate": 1e-3},
}
SENSITIVITY_ALPHAS, SENSITIVITY_HASHES = (1, 2, 4, 10, 20, 50), (1, 2, 3, 4)
UNHASHED = {"num_hashes": 1, "alpha": 1}
DIMS = range(4, 2049, 4)
# Width and heads of an unhashed model, alpha of the hashed model of its size, and the rows of Table 5 for both.
TEXT_PAIRS = ((16, 4, 40, ("baseline-h64", "hash40-h512")), (32, 4, 20, ("baseline-h256", "hash20-h1024")))
# Inputs and outputs as in the paper: each token of an id is an element, elements are a set, and one softmax covers the
# tokens of all hashes. Initial weights, masks and optimizer stay ours: from random weights, a model learns too little
# in minutes to compare depths.
SET_OPTIONS = {"distance": False, "positions": False}
PAPER_OPTIONS = {"spread": False, "inputs": "tokens", "softmax": "joint"} | SET_OPTIONS
PAPER_PREFIX = "paper: "  # of the names of cells with these options
PARTS = ("table2", "figure3", "table3", "table5", "table6", "table7", "costs", "examples", "sensitivity")
PART_ALIASES = {"table1": "table2", "table4": "table5"}
TEXT_PARTS = ("table5", "examples")
ENTITY_PARTS = tuple(part for part in PARTS if part != "table5")


@dataclass(frozen=True)
class Cell:
    """A model to train: its options, the parts of the report that need it, and its shares of the time."""

    name: str
    parts: tuple[str, ...]
    model: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    shares: int = 2
    seed: int = 0

    @property
    def file(self) -> str:
        """The name of its files.

        >>> Cell("α=10, m=2", (), {}, seed=1).file
        'α10-m2-seed1'
        """
        return re.sub(r"[^\w]+", "-", self.name.replace("=", "")).strip("-") + f"-seed{self.seed}"


class Shapes:
    """Makes the options of models for one corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.base: dict[str, Any] = dict(RECIPES["sequence"][0]) if corpus.is_ordered else {}
        if corpus.vocab.is_text:
            self.base = dict(RECIPES["text"][0])
        sizes = (corpus.num_ids, len(corpus.target_vocab or corpus.vocab))
        self.max_alpha = {m: min(max_alpha(size, m) for size in sizes) for m in SENSITIVITY_HASHES}
        wanted = next(alpha for alpha, ids in MAX_IDS_BY_ALPHA.items() if corpus.num_ids <= ids)
        self.alpha = min(wanted, self.max_alpha[2])
        self.hashed = {"alpha": self.alpha, "num_hashes": 2}

    def __call__(self, dim: int = DIM, **options: Any) -> dict[str, Any]:
        """Return the options of a model of this width."""
        return self.base | {"dim": dim, "ffn_dim": 4 * dim} | options

    def parameters(self, options: dict[str, Any]) -> int:
        """Return the number of parameters of a model with these options."""
        return num_parameters(Superbloom(**options).config_for(self.corpus))

    def sized(self, target: int, options: dict[str, Any], widths: Sequence[int] = DIMS) -> dict[str, Any]:
        """Return these options with the width that comes closest to the target number of parameters."""
        above = bisect.bisect_left(widths, target, key=lambda dim: self.parameters(self(dim, **options)))
        near = widths[max(0, above - 1) : above + 1]
        found = min(near, key=lambda dim: abs(self.parameters(self(dim, **options)) - target))
        return self(found, **options)


def cells(corpus: Corpus, seeds: int = 1) -> list[Cell]:
    """Return all cells of a corpus, in the order of training. Tables 2, 3 and 5 are repeated with other seeds."""
    shapes = Shapes(corpus)
    found = _text_cells(shapes) if corpus.vocab.is_text else _entity_cells(shapes)
    repeated = [cell for cell in found if {"table2", "table3", "table5"} & {*cell.parts}]
    return found + [
        replace(cell, seed=seed, model=cell.model | {"hash_seed": seed})
        for seed in range(1, seeds)
        for cell in repeated
    ]


def _entity_cells(shapes: Shapes) -> list[Cell]:
    """Return the cells of Tables 2, 3, 6 and 7, Figure 3, the examples and the sensitivity to α and m."""
    compared = _size_cells(shapes)
    depth = _depth_cells(shapes)
    as_in_paper = [
        replace(cell, name=PAPER_PREFIX + cell.name, parts=(part,), model=cell.model | PAPER_OPTIONS)
        for part, some in (("table2", compared), ("table3", depth))
        for cell in some
    ]
    return [
        *compared,
        *_sampled_cells(shapes),
        *depth,
        *_bag_cells(shapes),
        *as_in_paper,
        *_coherent_cells(shapes),
        *_sensitivity_cells(shapes),
    ]


def _size_cells(shapes: Shapes) -> list[Cell]:
    """Table 2 and Figure 3: a hashed model, and an unhashed one of its size."""
    superbloom = shapes(**shapes.hashed)
    return [
        Cell("superbloom", ("table2", "figure3", "table6", "table7", "examples"), superbloom),
        Cell("baseline", ("table2", "figure3"), shapes.sized(shapes.parameters(superbloom), UNHASHED)),
    ]


def _sampled_cells(shapes: Shapes) -> list[Cell]:
    """Table 2: a larger unhashed model with a sampled softmax, for several samplers."""
    samples = max(1, round(NEGATIVES_SHARE * len(shapes.corpus.target_vocab or shapes.corpus.vocab)))
    model = shapes(SAMPLED_DIM, **UNHASHED)
    return [
        Cell(f"sampled-softmax, {sampler}", ("table2",), model, {"loss": "sampled", "samples": samples, **options})
        for sampler, options in SAMPLERS.items()
    ]


def _depth_cells(shapes: Shapes) -> list[Cell]:
    """Table 3. Deep models, and the wide one of their size, get twice the time: the paper compares converged models."""
    deep = shapes(**shapes.hashed, layers=DEEP_LAYERS)
    wide = shapes.sized(shapes.parameters(deep), shapes.hashed | {"layers": 1})
    return [
        Cell("baseline-l1", ("table3",), shapes(**UNHASHED, layers=1)),
        Cell("baseline-deep", ("table3",), shapes(**UNHASHED, layers=DEEP_LAYERS), shares=4),
        Cell("superbloom-l1", ("table3",), shapes(**shapes.hashed, layers=1)),
        Cell("superbloom-wide-l1", ("table3",), wide, shares=4),
        Cell("superbloom-deep", ("table3",), deep, shares=4),
    ]


def _bag_cells(shapes: Shapes) -> list[Cell]:
    """Sec. 3.4: one layer that does not attend, or attends without distances."""
    one_layer = {"layers": 1} | SET_OPTIONS
    bag = one_layer | {"attend": False}
    return [
        Cell("baseline-bag", ("table3",), shapes(**UNHASHED | bag)),
        Cell("superbloom-bag", ("table3",), shapes(**shapes.hashed | bag)),
        Cell("superbloom-set-l1", ("table3",), shapes(**shapes.hashed | one_layer)),
    ]


def _coherent_cells(shapes: Shapes) -> list[Cell]:
    """Table 7: none, one or two coherent functions. The cell without any is "superbloom" if α is the same."""
    return [
        Cell(f"hash{alpha}-{coherent}", ("table7",), shapes(alpha=alpha, num_hashes=2, coherent=coherent))
        for alpha in COHERENT_ALPHAS
        for coherent in range(3)
        if alpha <= shapes.max_alpha[2] and (coherent or alpha != shapes.alpha)
    ]


def _sensitivity_cells(shapes: Shapes) -> list[Cell]:
    """Models with all α and m, of one size."""
    size = shapes.parameters(shapes(alpha=min(4, shapes.max_alpha[2]), num_hashes=2))
    return [
        Cell(
            sensitivity_name(alpha, m),
            ("sensitivity",),
            shapes.sized(size, {"alpha": alpha, "num_hashes": m}),
            shares=1,
        )
        for alpha in SENSITIVITY_ALPHAS
        for m in SENSITIVITY_HASHES
        if alpha <= shapes.max_alpha[m]
    ]


def sensitivity_name(alpha: int, m: int) -> str:
    """Return the name of the cell with this α and m hash functions."""
    return f"α={alpha}, m={m}"


def _text_cells(shapes: Shapes) -> list[Cell]:
    """Return small stand-ins of the pairs in Table 4: narrow unhashed models, and hashed models of the same size."""
    training = RECIPES["text"][1]
    found = []
    for width, heads, alpha, _ in TEXT_PAIRS:
        narrow = shapes(width, **UNHASHED, heads=heads)
        hashed = {"alpha": min(alpha, shapes.max_alpha[2]), "num_hashes": 2}
        wide = shapes.sized(shapes.parameters(narrow), hashed, DIMS[1::2])
        for name, options in ((f"baseline-h{width}", narrow), (f"hash{wide['alpha']}-h{wide['dim']}", wide)):
            found.append(Cell(name, TEXT_PARTS, options, training))
    return found
