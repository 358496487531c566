from superbloom.corpus import Corpus
from superbloom.reproduce.lab import Lab


def write_report(lab: Lab, corpus: Corpus) -> None:
    pass
