"""The memory beside the network: pairs and rows of training that are counted, not learned (not in the paper).

    context ids (q, n), places (q,)  →  names that the memory brings (q, names), and how likely they are

pairs.py keeps for each name its strongest neighbours. rows.py keeps the rows themselves and finds similar ones.
evidence.py collects what both know about a context, and parts.py turns that into distributions over names. Two things
are fitted to held-out rows: mixture.py weighs the parts against the network, ranker.py learns what the weights miss.
memory.py holds everything together.
"""

from superbloom.memory.events import REMEMBERED_SPLITS, Events
from superbloom.memory.evidence import Context, directed, names_of_rows
from superbloom.memory.memory import Memory, Recalled, can_remember, remember
from superbloom.memory.mixture import NETWORK, PARTS, fit_weights
from superbloom.memory.pairs import Pairs
from superbloom.memory.ranker import FIT_NAMES, MIN_ROWS, Examples, Ranker, fit_ranker
from superbloom.memory.rows import Rows

__all__ = [
    "FIT_NAMES",
    "MIN_ROWS",
    "NETWORK",
    "PARTS",
    "REMEMBERED_SPLITS",
    "Context",
    "Events",
    "Examples",
    "Memory",
    "Pairs",
    "Ranker",
    "Recalled",
    "Rows",
    "can_remember",
    "directed",
    "fit_ranker",
    "fit_weights",
    "names_of_rows",
    "remember",
]
