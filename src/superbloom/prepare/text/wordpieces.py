"""The word pieces every vocabulary of text begins with: BERT's, from its vocab.txt, or trained on the counted words."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from superbloom.corpus import MISSING, UNKNOWN
from superbloom.errors import InputError

MASK = "[MASK]"
RESERVED = re.compile(r"\[[^\[\]]+\]")  # [CLS], [unused7]: no words of a text, which is split at brackets
PIECES = 30_000  # when trained, as many as BERT's
# Words are given to the trainer as often as they occur, but for a common divisor, so that it reads no more than this.
TRAINING_WORDS = 4_000_000
LONGEST_LINE = 10_000


def read_word_pieces(path: str | Path) -> list[str]:
    """The entries of a BERT vocabulary, one a line, without the reserved ones in brackets."""
    try:
        data = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read: {error.strerror}; give a vocab.txt, one word piece a line"
        ) from None
    try:
        lines = data.decode().split("\n")  # not splitlines(): some vocabularies hold its rarer line ends
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"line {line:,} of '{path}' is not UTF-8 (byte 0x{data[error.start]:02x}); "
            "give a vocab.txt, one word piece a line"
        ) from None
    names = [line.removesuffix("\r") for line in lines]
    if names[-1] == "":
        names.pop()
    if not names:
        raise InputError(f"'{path}' is empty; give a vocab.txt, one word piece a line")
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name or " " in name:
            raise InputError(
                f"line {number:,} of '{path}' is {name!r:.80}; a word piece is neither empty nor has a space"
            )
        if name in seen:
            raise InputError(
                f"{name!r:.80} stands in '{path}' twice, on lines {seen[name]:,} and {number:,}; remove one"
            )
        seen[name] = number
    if MASK not in seen:
        raise InputError(f"'{path}' has no {MASK} among its {len(names):,} entries; give the vocab.txt of a BERT model")
    pieces = [name for name in names if not RESERVED.fullmatch(name)]
    if not pieces:
        raise InputError(f"'{path}' has only reserved entries in brackets; give a vocab.txt, one word piece a line")
    return pieces


def train_word_pieces(
    words: Sequence[tuple[str, int]], first: Sequence[str], later: Sequence[str], size: int
) -> list[str]:
    """Word pieces that cover all words made of these characters; first are those words begin with.

    words are the most frequent ones with their counts. The same words give the same pieces.
    """
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from tokenizers.trainers import WordPieceTrainer
    except ImportError:
        raise InputError(MISSING) from None
    tokenizer = Tokenizer(WordPiece({UNKNOWN: 0}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    # subtle: the trainer numbers ##x as it meets them, in the order of a hash table that differs from run to run, and
    # of pairs that are equally frequent it takes the smaller number. Named beforehand, they have their numbers.
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[UNKNOWN, *(f"##{character}" for character in sorted(later))],
        initial_alphabet=sorted({*first, *later}),
        limit_alphabet=len({*first, *later}),
    )
    divisor = -(-sum(count for _, count in words) // TRAINING_WORDS)

    def lines() -> Iterator[str]:
        for word, count in words:
            times = -(-count // divisor)
            at_once = max(1, LONGEST_LINE // (len(word) + 1))
            for done in range(0, times, at_once):
                yield f"{word} " * min(at_once, times - done)

    tokenizer.train_from_iterator(lines(), trainer)
    return sorted(set(tokenizer.get_vocab()) - {UNKNOWN})
