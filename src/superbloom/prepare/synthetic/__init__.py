"""Rows of a made-up world, in any number, whose best possible recall is known.

world.py     the names, and how rows are drawn
oracle.py    the exact probability of each hidden name
corpus.py    the corpus of a world, and the oracle for a corpus
"""

from superbloom.prepare.synthetic.corpus import SyntheticReport, prepare_synthetic, synthetic_corpus, world_of
from superbloom.prepare.synthetic.oracle import Oracle
from superbloom.prepare.synthetic.world import World

__all__ = ["Oracle", "SyntheticReport", "World", "prepare_synthetic", "synthetic_corpus", "world_of"]
