"""The memory beside the network: pairs and rows of training that are counted, not learned (not in the paper).

    context ids (q, n), places (q,)  →  names that the memory brings (q, names), and how likely they are

pairs.py keeps for each name its strongest neighbours. rows.py keeps the rows themselves and finds similar ones.
evidence.py collects what both know about a context, and parts.py turns that into distributions over names. Two things
are fitted to held-out rows: mixture.py weighs the parts against the network, ranker.py learns what the weights miss.
memory.py holds everything together. adding.py adds a newer corpus. To explain an answer, witnesses.py finds the rows
that hold it near the context.
"""

from superbloom.memory.adding import Added, add
from superbloom.memory.events import REMEMBERED_SPLITS, Events
from superbloom.memory.evidence import Context, directed, names_of_rows
from superbloom.memory.memory import Memory, Recalled, can_remember, check_half_life, remember
from superbloom.memory.mixture import NETWORK, PARTS, fit_weights
from superbloom.memory.pairs import Pairs
from superbloom.memory.ranker import FIT_NAMES, MIN_ROWS, Examples, Ranker, fit_ranker
from superbloom.memory.rows import Rows
from superbloom.memory.witnesses import Alike, most_similar, together

__all__ = [
    "FIT_NAMES",
    "MIN_ROWS",
    "NETWORK",
    "PARTS",
    "REMEMBERED_SPLITS",
    "Added",
    "Alike",
    "Context",
    "Events",
    "Examples",
    "Memory",
    "Pairs",
    "Ranker",
    "Recalled",
    "Rows",
    "add",
    "can_remember",
    "check_half_life",
    "directed",
    "fit_ranker",
    "fit_weights",
    "most_similar",
    "names_of_rows",
    "remember",
    "together",
]
