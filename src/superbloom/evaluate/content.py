"""Which entries of a text carry content: no punctuation, function words or ends of words, in any language."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_FUNCTION_WORDS = 100
FUNCTION_SHARE = 0.5  # in a small vocabulary, the words that together make up this share of all words are enough
CONTINUES = "##"  # how a word piece within a word begins
IN_A_WORD = r"[\pL\pM\pN]"  # a letter, a mark such as a vowel sign, or a digit


def is_content(names: pa.Array, counts: np.ndarray) -> np.ndarray:
    """Return which entries have a word of content, bool (entries,). counts: (entries,) in training rows.

    Function words are the 100 most frequent words, or the fewest that make up half of all words. The words of a bigram
    count as often as the bigram. Word pieces that continue a word, such as "##ing", are no words.

    >>> names = pa.array(["the", ",", "of the", "city", "the city", "##s"])
    >>> is_content(names, np.array([90, 80, 30, 20, 10, 9])).tolist()       # of 190 words, "the" is 130
    [False, False, True, True, True, False]
    """
    split = pc.split_pattern(names, " ")
    entry_of = np.repeat(np.arange(len(names)), pc.list_value_length(split).to_numpy())
    encoded = split.flatten().dictionary_encode()
    number_of, words = encoded.indices.to_numpy(), encoded.dictionary
    is_word = pc.and_not(pc.match_substring_regex(words, IN_A_WORD), pc.starts_with(words, CONTINUES))
    is_word = is_word.to_numpy(zero_copy_only=False).copy()
    frequency = np.bincount(number_of, weights=counts[entry_of], minlength=len(words)) * is_word
    ranked = np.argsort(-frequency, kind="stable")
    running = np.cumsum(frequency[ranked])
    enough = int(np.searchsorted(running, FUNCTION_SHARE * running[-1])) + 1
    is_word[ranked[: min(enough, MAX_FUNCTION_WORDS)]] = False
    return np.bincount(entry_of, weights=is_word[number_of], minlength=len(names)) > 0
