"""The memory beside the network: pairs and rows of training that are counted, not learned (not in the paper).

    context ids (q, n), places (q,)  →  probabilities of the names that the memory brings, sparse (q, num_ids)

pairs.py keeps for each name its strongest neighbours. rows.py keeps the rows themselves and finds similar ones.
parts.py turns both into distributions over names, mixture.py weighs them against the network by held-out rows, and
memory.py holds everything together. adding.py adds a newer corpus. To explain an answer, evidence.py finds the rows
that hold it near the context.
"""

from superbloom.memory.adding import Added, add
from superbloom.memory.events import REMEMBERED_SPLITS, Events
from superbloom.memory.evidence import Alike, most_similar, together
from superbloom.memory.memory import Memory, Recalled, can_remember, check_half_life, remember
from superbloom.memory.mixture import NETWORK, PARTS, fit_weights
from superbloom.memory.pairs import Pairs
from superbloom.memory.parts import Context, directed, names_of_rows, without
from superbloom.memory.rows import Rows

__all__ = [
    "NETWORK",
    "PARTS",
    "REMEMBERED_SPLITS",
    "Added",
    "Alike",
    "Context",
    "Events",
    "Memory",
    "Pairs",
    "Recalled",
    "Rows",
    "add",
    "can_remember",
    "check_half_life",
    "directed",
    "fit_weights",
    "most_similar",
    "names_of_rows",
    "remember",
    "together",
    "without",
]
