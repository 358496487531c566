"""Content words equal those of a plain loop, and are what a reader would expect in several scripts."""

import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superbloom.evaluate import content
from superbloom.evaluate.content import is_content

WORDS = st.sampled_from(["the", "of", "city", "jazz", "##s", ",", "—", "42", "ফুল", "##ি", "的", "☃"])
NAMES = st.lists(st.one_of(WORDS, st.tuples(WORDS, WORDS).map(" ".join)), min_size=1, max_size=30, unique=True)


def plain_content(counts: dict[str, int], most: int) -> list[bool]:
    frequency: Counter[str] = Counter()
    for name, count in counts.items():
        for word in name.split(" "):
            if word[:2] != "##" and any(unicodedata.category(character)[0] in "LMN" for character in word):
                frequency[word] += count
    function, so_far = set(), 0
    for word, count in sorted(frequency.items(), key=lambda item: -item[1]):
        if len(function) == most or (function and 2 * so_far >= sum(frequency.values())):
            break
        function.add(word)
        so_far += count
    return [any(word in frequency and word not in function for word in name.split(" ")) for name in counts]


@given(NAMES, st.data(), st.integers(1, 12))
def test_content_equals_a_plain_loop(names, data, most):
    counts = data.draw(st.lists(st.integers(1, 9), min_size=len(names), max_size=len(names)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "MAX_FUNCTION_WORDS", most)
        found = is_content(pa.array(names, pa.large_string()), np.array(counts))
    assert found.tolist() == plain_content(dict(zip(names, counts, strict=True)), most)
