"""The weights of network and memory: those under which held-out names are most likely, found by EM.

p(s) = Σ_k w_k · p_k(s). A part that has nothing to say about a context leaves its weight to the network.
"""

from __future__ import annotations

import numpy as np

NETWORK = "network"
PARTS = (NETWORK, "pairs", "pairs squared", "rows", "places", "repeats", "row repeats")
EM_STEPS = 200
NETWORK_ROWS = 3  # rows that the network is taken to explain before any are seen
MIN_WEIGHT = 1e-3  # a part below it is left out, and the network has at least this: no name is impossible


def fit_weights(probabilities: np.ndarray, rows: int | None = None) -> np.ndarray:
    """Weights (parts,) for the probabilities (n, parts) that each part gives to n hidden names; the network is first.

    rows: how many different rows the names come from, n by default. A few rows prove little, so NETWORK_ROWS more are
    taken as explained by the network.

    >>> fit_weights(np.array([[0.1, 0.4], [0.1, 0.0], [0.1, 0.4]] * 1000)).round(2).tolist()
    [0.45, 0.55]
    """
    hidden, count = probabilities.shape
    weights, believed = np.full(count, 1 / count), np.zeros(count)
    believed[0] = NETWORK_ROWS * hidden / (rows or hidden)
    for _ in range(EM_STEPS):
        blame = probabilities * weights
        blame /= np.maximum(blame.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        weights = (blame.sum(axis=0) + believed) / (hidden + believed[0])
    weights = np.where(weights < MIN_WEIGHT, 0, weights)
    weights[0] = max(weights[0], MIN_WEIGHT)
    # Rounded as the file of the model holds them, so that a saved model answers to the bit as before.
    return (weights / weights.sum()).astype(np.float32).astype(np.float64)
