"""Random limits of queries: how many ids, which ones, and the lowest score."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


@st.composite
def limits(draw, batch: int, num_ids: int, largest_k: int):
    """Options that limit the answers, and what they say: k, excluded and allowed ids and the floor of each query."""
    options = {}
    ks = [draw(st.integers(1, largest_k))] * batch
    if draw(st.booleans()):
        ks = [draw(st.integers(1, largest_k)) for _ in range(batch)]
    options["k"] = torch.tensor(ks) if len(set(ks)) > 1 else ks[0]
    excluded, allowed = (draw(filters(batch, num_ids)) for _ in range(2))
    for name, (given_, rows) in (("exclude", excluded), ("allow", allowed)):
        if given_ is not None and (name == "exclude" or all(rows)):
            options[name] = given_
    floors = [-np.inf] * batch
    if draw(st.booleans()):
        floors = [draw(st.sampled_from([-1.0, -3.0, -6.5, -np.inf])) for _ in range(batch)]
        options["min_score"] = torch.tensor(floors)
    return options, ks, excluded, allowed, floors


@st.composite
def filters(draw, batch: int, num_ids: int):
    """None, ids or a mask, for all queries or for each query; and the same as one set of ids per query."""
    kind = draw(st.sampled_from(["none", "ids", "mask"]))
    if kind == "none":
        return None, [set()] * batch
    rows = draw(st.sampled_from([1, batch]))
    if kind == "mask":
        mask = draw(hnp.arrays(np.bool_, (rows, num_ids)))
        sets = [set(np.flatnonzero(row).tolist()) for row in mask]
    else:
        mask = draw(hnp.arrays(np.int64, (rows, draw(st.integers(0, 4))), elements=st.integers(-1, num_ids - 1)))
        sets = [set(row.tolist()) - {-1} for row in mask]
    flat = rows == 1 and draw(st.booleans())
    return torch.from_numpy(mask[0] if flat else mask), sets * batch if rows == 1 else sets
