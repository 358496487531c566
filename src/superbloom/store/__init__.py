"""Model folders and their cards: `save` writes one, `load` reads it."""

from superbloom.store.card import escaped
from superbloom.store.model_folder import MAX_METRICS_BYTES, Stored, load, save

__all__ = [
    "MAX_METRICS_BYTES",
    "Stored",
    "escaped",
    "load",
    "save",
]
