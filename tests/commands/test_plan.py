"""Sizes proposed for a catalogue and a memory: counted against built models, measured peaks, and what must grow."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.config.model import ModelConfig
from superbloom.config.presets import PRESETS
from superbloom.config.training import TrainConfig
from superbloom.errors import InputError
from superbloom.hashing.construct import max_alpha
from superbloom.model.network import Network
from superbloom.training.choice import Sizes, choose, costs
from superbloom.training.plan import Rates, seconds_per_step
from superbloom.training.units import in_bytes
from tests.support.launch import command, python

GB = 10**9
TRAINING = TrainConfig(steps=1)
RATES = Rates(products=1e11, reading=1e10, narrow=3e10)
run = partial(command, "plan")


def plan(num_ids: int, memory: int, model: dict, training: TrainConfig) -> Sizes:
    return choose(num_ids, memory, model, training, must_fit=True)


@pytest.mark.parametrize("num_ids", [2, 50, 3_000, 40_000])
@pytest.mark.parametrize("model", [{}, {"num_hashes": 3}, {"tied": False, "layers": 1}, {"num_hashes": 1}], ids=str)
def test_parameters_are_those_of_the_model_that_is_built(num_ids, model):
    found = plan(num_ids, 8 * GB, model, TRAINING)
    assert found.parameters == Network(found.config).num_parameters()
    assert found.train_memory["weights"] == 4 * found.parameters
    assert found.train_memory["optimizer"] == 8 * found.parameters
    assert all(getattr(found.config, name) == value for name, value in model.items())


PEAK = """
import json, sys
from pathlib import Path
import superbloom.training.fit
from superbloom import Corpus, Superbloom
from superbloom.corpus import SPLITS
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
model, training = json.loads(sys.argv[1])
rows = [[f"{row} {(row + i) % 40}" for i in range(40)] for row in range(500)]
corpus = Corpus.from_sequences(rows)
quick = {"quiet": True, "warm_start": False}
Superbloom(dim=8, heads=1, layers=1, alpha=20).fit(corpus, steps=1, batch_size=2, valid_rows=2, **quick)
before = peak()  # with all that is loaded when training begins
Superbloom(**model).fit(corpus, steps=3, valid_rows=10, **quick, **training)
print(peak() - before)
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory as Linux tells them")
@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({"dim": 256, "ffn_dim": 1024, "alpha": 4}, {}),  # as much for weights and copies as for activations
        ({"dim": 512, "layers": 1, "alpha": 1, "num_hashes": 1}, {"batch_size": 8}),  # weights
        ({"dim": 64, "layers": 4, "alpha": 20}, {"batch_size": 256, "patience": 0, "average": 0.0}),  # activations
    ],
)
def test_memory_for_training_is_within_half_of_what_a_process_takes(model, training):
    done = python(PEAK, json.dumps([model, training]), timeout=200)
    assert done.returncode == 0, done.stderr
    config = ModelConfig(num_ids=20_000, **model)
    parts = costs(config, replace(TRAINING, **training), GB).train_memory
    expected = sum(parts.values()) - parts["program"]
    measured = int(done.stdout)
    assert 1 / 1.5 < measured / expected < 1.5, (measured / 1e6, {name: part / 1e6 for name, part in parts.items()})


SIZES = {
    "num_ids": st.integers(100, 10**7),
    "num_hashes": st.integers(1, 4),
    "dim": st.sampled_from([16, 64, 128, 512]),
    "layers": st.integers(1, 6),
    "seq_len": st.integers(2, 64),
}


@given(st.fixed_dictionaries(SIZES), st.integers(1, 60), st.sampled_from([*SIZES, "batch_size"]), st.integers(2, 3))
@settings(max_examples=100, deadline=None)
def test_more_of_anything_takes_more(sizes, alpha, name, times):
    small = ModelConfig(**sizes, alpha=alpha)
    training, more = TRAINING, TRAINING
    large = small
    if name == "batch_size":
        more = replace(TRAINING, batch_size=times * TRAINING.batch_size)
    else:
        large = replace(small, **{name: times * sizes[name]})
    one, other = costs(small, training, GB), costs(large, more, GB)
    assert other.parameters >= one.parameters
    # Logits of whole rows fill a budget: of longer rows a little less of it.
    parts = {part: 0.5 * size if part == "logits" else size for part, size in one.train_memory.items()}
    assert all(other.train_memory[part] >= size for part, size in parts.items())
    assert all(other.serve_memory[part] >= size for part, size in one.serve_memory.items())
    assert sum(other.operations.values()) > sum(one.operations.values())
    assert seconds_per_step(other, RATES) > seconds_per_step(one, RATES)


@given(st.fixed_dictionaries(SIZES), st.integers(1, 60), st.integers(2, 5))
@settings(max_examples=50, deadline=None)
def test_a_larger_alpha_takes_no_more(sizes, alpha, times):
    one, other = (costs(ModelConfig(**sizes, alpha=a), TRAINING, GB) for a in (alpha, times * alpha))
    assert other.needed <= one.needed
    assert other.parameters <= one.parameters
    assert other.serve_memory["int8"] <= other.serve_memory["bf16"] <= other.serve_memory["fp32"]


@given(st.integers(2, 10**8), st.floats(0.5, 64), st.sampled_from([{}, {"num_hashes": 3}, {"dim": 96}, {"alpha": 2}]))
@settings(max_examples=60, deadline=None)
def test_what_is_proposed_fits_and_what_is_given_is_kept(num_ids, gigabytes, model):
    try:
        found = plan(num_ids, int(gigabytes * GB), model, TRAINING)
    except InputError as error:
        assert re.search(r"would fit|too few to tell", str(error))  # noqa: PT017
        return
    assert found.needed <= gigabytes * GB
    assert all(getattr(found.config, name) == value for name, value in model.items())
    assert found.config.alpha <= max_alpha(num_ids, found.config.num_hashes)
    more = plan(num_ids, int(2 * gigabytes * GB), model, TRAINING)
    assert (more.config.dim, -more.config.alpha) >= (found.config.dim, -found.config.alpha)


@given(st.integers(2, 10**7), st.floats(0.1, 1000), st.floats(1.5, 20))
@settings(max_examples=60, deadline=None)
def test_more_time_never_hashes_more(num_ids, minutes, times):
    one, other = (choose(num_ids, 64 * GB, {"dim": 128}, TrainConfig(minutes=t)) for t in (minutes, minutes * times))
    assert other.config.alpha <= one.config.alpha


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"alpha": 1}, (1, 1)),  # no hashing means one hash
        ({"alpha": 1, "num_hashes": 2}, (1, 2)),  # unless two are asked for
        ({"alpha": 10}, (10, 2)),
        ({"num_hashes": 3}, (3, 3)),  # not more tokens than names
        ({"coherent": 1}, (2, 2)),
    ],
    ids=str,
)
def test_what_a_user_says_about_hashing_is_kept(given, sizes):
    found = choose(5_000, 16 * GB, given, TrainConfig(minutes=60)).config
    assert (found.alpha, found.num_hashes) == sizes


def test_a_sampled_softmax_is_not_hashed():
    found = choose(1_000_000, 16 * GB, {}, TrainConfig(minutes=1, loss="sampled")).config
    assert (found.alpha, found.num_hashes) == (1, 1)


def test_short_rows_leave_more_steps_and_less_hashing():
    long, short = (choose(100_000, 16 * GB, {}, TrainConfig(minutes=5), filled=filled) for filled in (1.0, 0.1))
    assert short.steps_per_minute > 4 * long.steps_per_minute / (long.config.alpha / short.config.alpha)
    assert short.config.alpha < long.config.alpha


def test_a_small_memory_raises_alpha_once_d_is_small():
    sizes = [plan(20_000_000, int(g * GB), {}, TrainConfig(minutes=1e5)).config for g in (64, 16, 4, 2, 1.6)]
    assert [config.dim for config in sizes] == sorted((config.dim for config in sizes), reverse=True)
    assert sizes[-1].alpha > sizes[1].alpha > sizes[0].alpha


def test_a_preset_is_counted_as_it_is():
    config = PRESETS["superbloom"].config
    assert costs(config, TRAINING, GB).parameters == 248_123_980


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("16 gb", 16 * 10**9),
        ("16G", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("1.5TB", 1_500 * 10**9),
        ("512MiB", 2**29),
        ("2kB", 2000),
        ("123456789", 123_456_789),
        ("100B", 100),
    ],
)
def test_units(text, size):
    assert in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "16XB", "1e9", "nan", "16 GB of it", "ib", "1ib", "٣GB"])
def test_what_is_no_memory_is_refused(text):
    with pytest.raises(InputError, match="given; a number of bytes is allowed, or with a unit: 16GB"):
        in_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ids", 5_300_000, "--memory", "lots"), r"memory 'lots' given; a number of bytes is allowed"),
        (("--ids", 1, "--memory", "1GB"), r"--ids 1 given; 2 or more is allowed"),
        (
            ("--ids", 5_300_000, "--memory", "8GB", "--alpha", 4, "--dim", 768),
            r"alpha=4, dim=768 take \d+\.\d GB with 2,\d{3},\d{3},\d{3} parameters, of 8\.0 GB; --alpha \d+ or --dim "
            r"\d+ or --memory \d+\.\dGB would fit",
        ),
        (("--ids", 5_300_000, "--memory", "100MB"), r"of 100 MB; --memory \d\.\dGB would fit"),
        (("--ids", 10_000, "--alpha", 5_000), r"alpha=5000 leaves 2 buckets.*the largest alpha that works is \d+"),
        (("--ids", 10_000, "--dim", 30, "--heads", 4), r"heads=4 does not divide dim=30"),
        (("--ids", 10_000, "--preset", "huge"), r"preset 'huge' given"),
    ],
)
def test_what_cannot_be_is_one_line_that_says_what_can(arguments, message):
    done = run(*arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert not done.stdout


def test_what_is_said_to_fit_does():
    with pytest.raises(InputError) as raised:
        plan(5_300_000, 8 * GB, {"alpha": 4, "dim": 768}, TRAINING)
    alpha, dim, memory = re.search(r"--alpha (\d+) or --dim (\d+) or --memory (\S+) would", str(raised.value)).groups()
    assert plan(5_300_000, 8 * GB, {"alpha": int(alpha), "dim": 768}, TRAINING)
    assert plan(5_300_000, 8 * GB, {"alpha": 4, "dim": int(dim)}, TRAINING)
    assert plan(5_300_000, in_bytes(memory), {"alpha": 4, "dim": 768}, TRAINING)
    with pytest.raises(InputError):
        plan(5_300_000, 8 * GB, {"alpha": int(alpha) - 1, "dim": 768}, TRAINING)


def test_the_command_prints_a_table_and_the_next_command():
    done = run("--ids", 5_300_000, "--memory", "16GB", "--layers", 3, "--no-spread")
    assert max(map(len, done.stdout.splitlines()[:-3])) <= 80
    text = " ".join(done.stdout.split())
    for words in ("parameters", "memory for training", "optimizer", "average", "logits", "serving, int8", "estimate"):
        assert words in text
    assert re.search(r"steps per minute [\d.,]+ steps in 5 minutes [\d,]+ to a first useful network, 200 steps", text)
    assert re.search(r"train CORPUS --out MODEL --alpha 50 --num-hashes 2 --dim 128 .*--no-spread --layers 3", text)


def test_a_small_catalogue_needs_no_hashing():
    assert "You do not need hashing." in run("--ids", 2636, "--memory", "23GB").stdout
    found = json.loads(run("--ids", 2636, "--memory", "23GB", "--json").stdout)
    assert (found["model"]["alpha"], found["model"]["num_hashes"], found["hashed"]) == (1, 1, False)
    assert found["tokens"] == 2640


def test_the_command_as_json_is_one_document():
    found = json.loads(run("--ids", 1_000_000, "--memory", "2GiB", "--dim", 64, "--json").stdout)
    assert found["model"]["dim"] == 64
    assert found["memory"] == 2 * 2**30
    parts = dict(found["training_memory"])
    assert parts.pop("all") == sum(parts.values()) <= found["memory"]
    assert set(found["serving_memory"]) == set(found["estimates"]["seconds_per_query"]) == {"fp32", "bf16", "int8"}
    assert found["estimates"]["seconds_per_step"] > 0


def test_the_page_of_sizes_names_options_that_are():
    page = (Path(__file__).parents[2] / "docs" / "sizes.md").read_text()
    fields = (
        ModelConfig.__dataclass_fields__.keys() | TrainConfig.__dataclass_fields__.keys() | {"ids", "memory", "json"}
    )
    for option in re.findall(r"--([a-z][a-z-]+)", page):
        assert option.removeprefix("no-").replace("-", "_") in fields | {"links", "only"}, option
