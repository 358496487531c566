"""Which models are trained in which made-up world, and what each claim compares.

All models read as in the paper (PAPER_OPTIONS) and start from noise. They train until validation is flat, or until
their time is over. One name of each row is hidden in training, as in the test.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from superbloom.config import ModelConfig, SyntheticOptions
from superbloom.hashing import max_alpha
from superbloom.reproduce.cells import PAPER_OPTIONS, SET_OPTIONS, UNHASHED, Cell
from superbloom.training.limits import num_parameters

# Rows of lists of five countries, three capitals of four with their countries: the best possible recall@1 is near 70 %.
PAGES: dict[str, Any] = {"list_size": 5, "lists_per_row": 1, "complete": 0.7, "follows": 0.8, "noise": 0.5}
BASE, LARGE = "base", "3,240 names"
WORLDS: dict[str, SyntheticOptions] = {
    BASE: SyntheticOptions(countries=150, lists=60, rows=1_000_000, **PAGES),
    "120 names": SyntheticOptions(countries=50, lists=20, rows=1_000_000, **PAGES),
    "1,080 names": SyntheticOptions(countries=450, lists=180, rows=1_000_000, **PAGES),
    LARGE: SyntheticOptions(countries=1350, lists=540, rows=1_000_000, **PAGES),
    "1,000 rows": SyntheticOptions(countries=150, lists=60, rows=200_000, train_rows=1_000, **PAGES),
    "10,000 rows": SyntheticOptions(countries=150, lists=60, rows=200_000, train_rows=10_000, **PAGES),
    "100,000 rows": SyntheticOptions(countries=150, lists=60, rows=200_000, train_rows=100_000, **PAGES),
    "two lists": SyntheticOptions(countries=150, lists=60, rows=1_000_000, **(PAGES | {"lists_per_row": 2})),
}
DIM, HEADS = 32, 2
DEEP = 4
ALPHA = 10  # of the hashed model that is compared everywhere
SHARES = {1: 1, 2: 2, 4: 3, 8: 5}  # of the time, by layers
DEPTHS = (*SHARES,)
# Other densities, by world: more than the root of the number of names would give two names one digest.
ALPHAS = {BASE: (2, 5, 15), LARGE: (20, 50)}
TOKENS_PER_HASH = ((2, 10), (3, 15), (4, 20))  # m and α with the same number of tokens
COHERENT_ALPHAS = (5, 10)
NEGATIVES = (0.025, 0.1, 0.4)  # share of the names; the paper has 2.5 %
DIMS = range(4, 129, 4)
TRAINING: dict[str, Any] = {
    "warm_start": False,
    "remember": "none",
    "mask_share": 0.01,  # one element of each row
    "batch_size": 64,
    "learning_rate": 4e-3,
    "precision": "fp32",  # bf16 takes three times as long for batches as small as these
    "valid_every": 500,
    "valid_rows": 2000,
    "save_every": 2000,
    "patience": 20,
}
OUR_OPTIONS = {"inputs": "sum", "softmax": "per-hash"} | SET_OPTIONS
TABLE_PARTS = ("table2", "table3", "table6", "table7", "figure3")
PHASE_PARTS = ("alpha", "names", "rows", "lists")
LAB_PARTS = ("depth", *TABLE_PARTS, "m", *PHASE_PARTS)


@dataclass(frozen=True)
class LabCell(Cell):
    """A model to train in a world."""

    world: str = BASE


def cell_name(world: str = BASE, alpha: int = 1, layers: int = DEEP, more: str = "") -> str:
    """The name of a cell.

    >>> cell_name(), cell_name("1,000 rows", 10, 1, "m=3")
    ('unhashed, 4 layers', '1,000 rows: α=10, 1 layer, m=3')
    """
    what = f"{'unhashed' if alpha == 1 else f'α={alpha}'}, {layers} layer{'s' * (layers > 1)}"
    return ("" if world == BASE else f"{world}: ") + what + (f", {more}" if more else "")


SIZED, WIDE, OURS = "of equal size", "as large as deep", "our reading"


def lab_cells(parts: set[str], seeds: int) -> list[LabCell]:
    """The cells of these parts, all models with the first seed first."""
    first = [cell for cell in grid() if parts & {*cell.parts}]
    return [replace(cell, seed=seed, model=cell.model | {"hash_seed": seed}) for seed in range(seeds) for cell in first]


@cache
def grid() -> tuple[LabCell, ...]:
    """Return every cell once, with all parts that need it."""
    found: dict[str, LabCell] = {}
    for cell in _all_cells():
        earlier = found.get(cell.name)
        found[cell.name] = replace(cell, parts=(*(earlier.parts if earlier else ()), *cell.parts))
    return tuple(found.values())


def _all_cells() -> Iterator[LabCell]:
    for make in (_depth, _table_2, _alphas, _table_7, _hashes):
        yield from make()
    for part, worlds in (
        ("names", ("120 names", "1,080 names", LARGE)),
        ("rows", ("1,000 rows", "10,000 rows", "100,000 rows")),
        ("lists", ("two lists",)),
    ):
        for world in worlds:
            yield from _pairs(world, part)


def _depth() -> Iterator[LabCell]:
    """Table 3: depths, hashed and not, and one wide layer as large as the deep model; also in our reading."""
    for layers in DEPTHS:
        for alpha in (1, ALPHA):
            parts = ("table3", *(("table2", "table6", "table7", "figure3") if (layers, alpha) == (DEEP, ALPHA) else ()))
            parts += ("depth", "alpha", "names", "rows", "lists") if layers in (1, DEEP) else ()
            yield _cell(BASE, alpha, layers, parts)
    wide = _sized(BASE, ALPHA, 1, WIDE, like=_model(ALPHA, DEEP), parts=("table3",))
    yield replace(wide, shares=SHARES[DEEP])
    for layers in (1, DEEP):
        for alpha in (1, ALPHA):
            cell = _cell(BASE, alpha, layers, ("table3",), OURS)
            yield replace(cell, model=cell.model | OUR_OPTIONS)


def _alphas() -> Iterator[LabCell]:
    for world, alphas in ALPHAS.items():
        for alpha in alphas:
            for layers in (1, DEEP):
                yield _cell(world, alpha, layers, ("alpha",))
            more = f"{SIZED} to α={alpha}"
            yield _sized(world, 1, DEEP, more, like=_model(alpha, DEEP), parts=("alpha",))
    yield from _pairs(LARGE, "alpha")


def _table_2() -> Iterator[LabCell]:
    """Table 2: an unhashed model of the hashed one's size, and sampled softmaxes with and without logQ."""
    parts = ("table2", "figure3", "alpha", "names", "rows", "lists")
    yield _sized(BASE, 1, DEEP, f"{SIZED} to α={ALPHA}", like=_model(ALPHA, DEEP), parts=parts)
    yield _cell(BASE, 1, DEEP, ("table2",))
    for share in NEGATIVES:
        for log_q in (True, False):
            cell = _cell(BASE, 1, DEEP, ("table2",), sampled_name(share, log_q))
            samples = max(1, round(share * num_names(BASE)))
            sampling = {"loss": "sampled", "samples": samples, "proposal": "empirical", "log_q": log_q}
            yield replace(cell, training=cell.training | sampling)


def sampled_name(share: float, log_q: bool) -> str:
    """What the name of a cell says about its sampled softmax."""
    return f"{share:.1%} sampled{'' if log_q else ' without logQ'}"


def _table_7() -> Iterator[LabCell]:
    for alpha in COHERENT_ALPHAS:
        yield _cell(BASE, alpha, DEEP, ("table7",))
        for coherent in (1, 2):
            cell = _cell(BASE, alpha, DEEP, ("table7",), f"{coherent} coherent")
            yield replace(cell, model=cell.model | {"coherent": coherent})


def _hashes() -> Iterator[LabCell]:
    """The same number of tokens, divided among more hash functions."""
    for m, alpha in TOKENS_PER_HASH:
        if alpha <= max_alpha(num_names(BASE), m):
            cell = _cell(BASE, alpha, DEEP, ("m",), "" if m == 2 else f"m={m}")
            yield replace(cell, model=cell.model | {"num_hashes": m})


def _pairs(world: str, part: str) -> Iterator[LabCell]:
    """Shallow and deep, hashed and not, and an unhashed model of the deep hashed one's size."""
    for alpha in (1, ALPHA):
        for layers in (1, DEEP):
            yield _cell(world, alpha, layers, (part,))
    yield _sized(world, 1, DEEP, f"{SIZED} to α={ALPHA}", like=_model(ALPHA, DEEP), parts=(part,))


def _model(alpha: int, layers: int, dim: int = DIM) -> dict[str, Any]:
    hashes = UNHASHED if alpha == 1 else {"num_hashes": 2, "alpha": alpha}
    sizes = {"dim": dim, "heads": HEADS, "ffn_dim": 4 * dim, "layers": layers}
    # Embeddings begin with a length of 1. With 0.02 a number, deep models learn far more slowly (docs/log.md).
    return PAPER_OPTIONS | hashes | sizes | {"dropout": 0.0, "embedding_std": round(dim**-0.5, 3)}


def num_names(world: str) -> int:
    """The number of names of a world."""
    options = WORLDS[world]
    return 2 * options.countries + options.lists


def _cell(world: str, alpha: int, layers: int, parts: tuple[str, ...], more: str = "", dim: int = DIM) -> LabCell:
    model = _model(min(alpha, max_alpha(num_names(world), 2)), layers, dim)
    return LabCell(cell_name(world, alpha, layers, more), parts, model, TRAINING, SHARES[layers], world=world)


def _sized(world: str, alpha: int, layers: int, more: str, *, like: dict[str, Any], parts: tuple[str, ...]) -> LabCell:
    """A cell with the width that comes closest to the size of another model."""
    num_ids = num_names(world)
    target = num_parameters(ModelConfig(num_ids=num_ids, **like))

    def size(dim: int) -> int:
        return num_parameters(ModelConfig(num_ids=num_ids, **_model(alpha, layers, dim)))

    above = bisect.bisect_left(DIMS, target, key=size)
    dim = min(DIMS[max(0, above - 1) : above + 1], key=lambda dim: abs(size(dim) - target))
    return _cell(world, alpha, layers, parts, more, dim)
