"""Words and sentences of a text by plain loops, as an oracle."""

import re
import unicodedata

from tokenizers import PreTokenizedString
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from superbloom.corpus.words import MAX_WORD_CHARS

CLOSING = "\"')]}’”»›」』）】》〉"


def words_of(text: str, lowercase: bool) -> list[tuple[str, int, int]]:
    """Each word of a text with its first and last character, by the library over the whole of it."""
    whole = PreTokenizedString(text)
    whole.normalize(BertNormalizer(lowercase=lowercase).normalize)
    BertPreTokenizer().pre_tokenize(whole)
    found = []
    for word, (start, end), _ in whole.get_splits("original", "char"):
        found += [(word[at : at + MAX_WORD_CHARS], start, end) for at in range(0, len(word), MAX_WORD_CHARS)]
    return found


def begins_of(text: str, starts: list[int]) -> list[bool]:
    """Whether a line or a sentence begins between each word and the one before."""
    breaks = [0]
    ended = False
    last = 0
    for raw in re.finditer(r"[^ \t\n\r]+", text):
        if ended or "\n" in text[last : raw.start()]:
            breaks.append(raw.start())
        ended = raw[0].rstrip(CLOSING)[-1:] in tuple(".!?。！？")
        last = raw.end()
    before = -1
    found = []
    for start in starts:
        found.append(any(before < place <= start for place in breaks))
        before = start
    return found


def is_punctuation(word: str) -> bool:
    return len(word) == 1 and (word in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(word)[0] == "P")


def pieces_of(word: str, names: set[str]) -> list[str]:
    """The longest pieces first, or none if they do not cover the word."""
    found: list[str] = []
    at = 0
    while at < len(word):
        prefix = "##" if at else ""
        end = next((end for end in range(len(word), at, -1) if prefix + word[at:end] in names), None)
        if end is None:
            return []
        found.append(prefix + word[at:end])
        at = end
    return found
