"""A hash table on arrays: distinct non-negative numbers (n,) → ids int32 (n,), looked up many at a time.

The segmenter finds bigrams with it. A slot that is taken leads to the next one (linear probing).
"""

from __future__ import annotations

import secrets

import numpy as np

ABSENT = -1  # the key of a free slot, and the id of a key that is not in the table


class HashTable:
    """Maps numbers to ids.

    >>> HashTable(np.array([7, 2**40]), np.array([1, 0])).find(np.array([2**40, 8, 7])).tolist()
    [0, -1, 1]
    """

    def __init__(self, keys: np.ndarray, ids: np.ndarray) -> None:
        # Random, so that nobody can choose keys that all fall into the same slots.
        self.factor = np.uint64(secrets.randbits(64) | 1)
        bits = max(3, (2 * len(keys)).bit_length())
        self.shift, self.mask = np.uint64(64 - bits), 2**bits - 1
        self.keys = np.full(2**bits, ABSENT, dtype=np.int64)
        self.ids = np.full(2**bits, ABSENT, dtype=np.int32)
        slots = self._slots(keys)
        while len(keys):
            free = self.keys[slots] == ABSENT
            self.keys[slots[free]] = keys[free]  # the last of several keys for one slot gets it
            settled = self.keys[slots] == keys
            self.ids[slots[settled]] = ids[settled]
            keys, ids, slots = keys[~settled], ids[~settled], (slots[~settled] + 1) & self.mask

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the id of each key, ABSENT where there is none; int32."""
        found = np.full(len(keys), ABSENT, dtype=np.int32)
        slots, asked = self._slots(keys), np.arange(len(keys))
        while len(asked):
            there = self.keys[slots]
            hit = there == keys
            found[asked[hit]] = self.ids[slots[hit]]
            open_ = ~hit & (there != ABSENT)
            keys, asked, slots = keys[open_], asked[open_], (slots[open_] + 1) & self.mask
        return found

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        # subtle: multiplied twice. One product with a factor near a simple fraction puts adjacent keys side by side.
        product = keys.astype(np.uint64) * self.factor
        product ^= product >> np.uint64(32)
        return ((product * self.factor) >> self.shift).astype(np.int64)
