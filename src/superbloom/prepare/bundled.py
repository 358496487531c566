"""The built-in corpus: entity names and links of enwik8, made by the same reader as any dump.

    python -m superbloom.prepare.bundled enwik8.xz      rebuilds data/enwik8-links.tsv.xz, byte for byte

enwik8 is the first 10^8 bytes of the English Wikipedia dump of 2006-03-03; data/ATTRIBUTION.md names its authors. All
259,996 link targets are kept. Most of them have no page in this slice.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from pathlib import Path

from superbloom.errors import InputError
from superbloom.prepare.corpus import Corpus
from superbloom.prepare.sequences import read_sequences
from superbloom.prepare.wikipedia import prepare_wikipedia

LINKS = Path(__file__).parents[1] / "data" / "enwik8-links.tsv.xz"
FREQUENT = 20_000  # names of the smaller corpus of several benchmarks
SOURCE = "enwik8: English Wikipedia of 2006-03-03, GFDL"


def bundled_corpus(max_names: int | None = None) -> Corpus:
    """The built-in corpus, as `superbloom prepare sequences --keyed` would make it; max_names as there."""
    return Corpus.from_keyed(read_sequences([LINKS], keyed=True), source=SOURCE, max_names=max_names)


def build(dump: str | Path) -> bytes:
    """The bytes of the built-in file: a line per page with its title and the entities that it links to."""
    with tempfile.TemporaryDirectory() as folder:
        prepare_wikipedia([dump], Path(folder) / "corpus", open_links=True)
        corpus = Corpus.open(Path(folder) / "corpus")
    keys = corpus.sequences["key"].to_pylist()
    lines = ("\t".join([key, *corpus.vocab.names(corpus.row(row))]) for row, key in enumerate(keys))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return lzma.compress("".join(f"{line}\n" for line in lines).encode(), filters=filters)


if __name__ == "__main__":
    try:
        (path,) = sys.argv[1:] or (None,)
        if path is None:
            raise InputError("give the dump: python -m superbloom.prepare.bundled enwik8.xz")
        LINKS.write_bytes(build(path))
    except InputError as error:
        sys.exit(f"error: {error}")
