"""The word pieces that a vocabulary of text begins with: read from BERT's vocab.txt, or trained on the text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from superbloom.corpus import TEXT_EXTRA_MISSING, UNKNOWN_TOKEN
from superbloom.errors import InputError

MASK = "[MASK]"
RESERVED = re.compile(r"\[[^\[\]]+\]")  # [CLS], [unused7]; never words of a text, which is split at brackets
TRAINED_PIECES = 30_000  # about the number of BERT's word pieces
# The trainer reads each word as often as it occurs, divided by a number that keeps the total at about this.
TRAINING_WORDS = 4_000_000
LINE_LENGTH = 10_000  # characters, of the lines that the trainer reads


def read_word_pieces(path: str | Path) -> list[str]:
    """The entries of a BERT vocabulary, one per line, without the reserved ones in brackets."""
    try:
        data = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read: {error.strerror}; give a vocab.txt, one word piece per line"
        ) from None
    try:
        lines = data.decode().split("\n")  # splitlines() would split at rarer line ends, which some vocabularies hold
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"line {line:,} of '{path}' is not UTF-8 (byte 0x{data[error.start]:02x}); "
            "give a vocab.txt, one word piece per line"
        ) from None
    names = [line.removesuffix("\r") for line in lines]
    if names[-1] == "":
        names.pop()
    if not names:
        raise InputError(f"'{path}' is empty; give a vocab.txt, one word piece per line")
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name or " " in name:
            raise InputError(f"line {number:,} of '{path}' is {name!r:.80}; a word piece is not empty and has no space")
        if name in seen:
            raise InputError(f"'{path}' lists {name!r:.80} twice, on lines {seen[name]:,} and {number:,}; remove one")
        seen[name] = number
    if MASK not in seen:
        raise InputError(f"'{path}' has no {MASK} among its {len(names):,} entries; give the vocab.txt of a BERT model")
    pieces = [name for name in names if not RESERVED.fullmatch(name)]
    if not pieces:
        raise InputError(f"'{path}' has only reserved entries in brackets; give a vocab.txt, one word piece per line")
    return pieces


def train_word_pieces(
    words: Sequence[tuple[str, int]], first: Sequence[str], later: Sequence[str], size: int
) -> list[str]:
    """Word pieces that cover all words made of these characters. The same words give the same pieces.

    words: the most frequent ones, with their counts. first, later: the characters that words begin with, and others.
    """
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from tokenizers.trainers import WordPieceTrainer
    except ImportError:
        raise InputError(TEXT_EXTRA_MISSING) from None
    tokenizer = Tokenizer(WordPiece({UNKNOWN_TOKEN: 0}, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    # subtle: the trainer numbers ##x in the order of a hash table, which differs from run to run, and breaks ties
    # between pairs by number. As special tokens they have fixed numbers.
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[UNKNOWN_TOKEN, *(f"##{character}" for character in sorted(later))],
        initial_alphabet=sorted({*first, *later}),
        limit_alphabet=len({*first, *later}),
    )
    divisor = -(-sum(count for _, count in words) // TRAINING_WORDS)

    def lines() -> Iterator[str]:
        for word, count in words:
            times = -(-count // divisor)
            at_once = max(1, LINE_LENGTH // (len(word) + 1))
            for done in range(0, times, at_once):
                yield f"{word} " * min(at_once, times - done)

    tokenizer.train_from_iterator(lines(), trainer)
    return sorted(set(tokenizer.get_vocab()) - {UNKNOWN_TOKEN})
