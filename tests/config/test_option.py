"""Options: what is allowed, how faults are reported, and what the command line makes of a field."""

import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from superbloom.commands.options import given
from superbloom.config import EvaluateOptions, ExtendOptions, HeadOptions, TextOptions, WikipediaOptions
from superbloom.config.option import POSITIVE, document, faults, kind_of, make, option, settle, whole
from superbloom.errors import InputError


@dataclass(frozen=True)
class Options:
    count: int = option(3, "How many.", whole(1, 5))
    share: float | None = option(None, "How much.", POSITIVE)
    kind: Literal["a", "b"] = option("a", "Which.")
    quiet: bool = option(False, "Say nothing.")

    def __post_init__(self) -> None:
        settle(self)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"count": 0}, "count=0: 1 to 5 is allowed"),
        ({"count": True}, "count=True: 1 to 5 is allowed"),
        ({"count": 2.0}, "count=2.0: 1 to 5 is allowed"),
        ({"share": float("nan")}, "share=nan: more than 0 is allowed"),
        ({"share": "1"}, "share='1': more than 0 is allowed"),
        ({"kind": "c", "quiet": 1}, "kind='c': 'a' or 'b' is allowed; quiet=1: True or False is allowed"),
    ],
)
def test_all_faults_are_reported_in_one_line(wrong, line):
    with pytest.raises(InputError) as error:
        Options(**wrong)
    assert str(error.value) == line


def test_numbers_of_numpy_become_plain():
    options = Options(count=np.int64(2), share=np.float32(0.5), quiet=np.bool_(True))
    assert (type(options.count), type(options.share), type(options.quiet)) == (int, float, bool)
    assert EvaluateOptions(seed=np.int64(3), rows=np.int32(2)).seed == 3


def test_unknown_options_are_refused_with_those_that_are_known():
    with pytest.raises(InputError, match=r"unknown options \['size'\]; count, share, kind, quiet are allowed"):
        make(Options, {"size": 1})


def test_the_type_of_an_optional_field_keeps_all_its_parts():
    assert kind_of(int | None) == (int, True)
    assert kind_of(str | os.PathLike[str] | None) == (str | os.PathLike[str], True)
    assert kind_of(str) == (str, False)


def test_memory_is_given_in_gigabytes_and_held_in_bytes():
    assert given(WikipediaOptions, {"memory": 1.5}) == {"memory": 1_500_000_000}
    assert WikipediaOptions().memory == TextOptions().memory == 2_000_000_000
    for wrong in (float("nan"), float("inf"), -1.0, 0.0):
        with pytest.raises(InputError, match="a number of GB is allowed"):
            given(WikipediaOptions, {"memory": wrong})


def test_options_of_heads_and_of_new_names_check_themselves():
    with pytest.raises(InputError, match="precision='fp8': 'fp32' or 'bf16' or 'int8' is allowed"):
        HeadOptions(precision="fp8")
    with pytest.raises(InputError, match="reserve=-1: 0 to 10 is allowed"):
        ExtendOptions(reserve=-1)


def test_a_docstring_lists_options_with_their_defaults():
    @document(Options)
    def function():
        """Does something."""

    assert function.__doc__.startswith("Does something.")
    assert "count = 3: How many." in function.__doc__


def test_sound_options_have_no_faults():
    assert faults(Options(count=5, share=0.1, kind="b", quiet=True)) == []
