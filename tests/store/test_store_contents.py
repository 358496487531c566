"""A model folder by its contents: every part comes back as it was, and each part that does not fit the rest is refused.

test_damage.py and test_hostile.py change files from outside, in other processes; here single numbers are wrong and
checksums are right.
"""

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from superbloom.config.model import ModelConfig
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.model.model import Model
from superbloom.model.prior import Prior
from superbloom.model.repetition import Repetition
from superbloom.storage import folder as folder_module
from superbloom.store.model_folder import LEGACY_DEFAULTS, MAX_CARD_BYTES, load, save
from superbloom.store.tensors import write_tensors

NAMES = Vocab.from_counts({f"name {i}": 90 - i for i in range(30)})
TARGETS = Vocab.from_counts({f"target {i}": 90 - i for i in range(14)})
SIZES = {"num_ids": 30, "alpha": 4, "dim": 8, "heads": 2, "ffn_dim": 12, "layers": 3, "seq_len": 6}
TRAINING, METRICS = {"steps": 7, "rows": {"train": 5}}, {"valid": [{"step": 7, "loss": 1.25}]}


def made(*, two: bool = False, prior: bool = True, **options) -> Model:
    torch.manual_seed(0)
    options = SIZES | ({"num_target_ids": 14, "target_alpha": 3, "tied": False} if two else {}) | options
    model = Model.create(ModelConfig(**options), NAMES, TARGETS if two else None)
    if prior:
        counts = torch.arange(14 if two else 30, dtype=torch.int32) - 1
        model = replace(model, prior=Prior(counts))
    if prior and not two:
        model = replace(model, repetition=Repetition(torch.linspace(-1, 1, 6)))
    return model


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "model"
    save(made(), folder, training=TRAINING, metrics=METRICS)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "model"
    save(made(two=True), folder, training=TRAINING, metrics=METRICS)
    return folder


def assert_same(found: Model, model: Model) -> None:
    assert found.config == model.config
    theirs = model.network.state_dict()
    assert found.network.state_dict().keys() == theirs.keys()
    for name, part in found.network.state_dict().items():
        assert torch.equal(part, theirs[name]), name
    for ours, other in ((found.bloom, model.bloom), (found.target_bloom, model.target_bloom)):
        assert all(torch.equal(getattr(ours, part), getattr(other, part)) for part in ("table", "order", "starts"))
        assert (ours.alpha, ours.num_special) == (other.alpha, other.num_special)
    for ours, other in ((found.vocab, model.vocab), (found.target_vocab, model.target_vocab)):
        assert ours.names(range(len(ours))) == other.names(range(len(other)))
    assert (
        (found.target_bloom is found.bloom)
        == (found.target_vocab is found.vocab)
        == (model.vocab is model.target_vocab)
    )
    assert (found.repetition is None) == (model.repetition is None)
    if found.repetition is not None:
        assert torch.equal(found.repetition.by_distance, model.repetition.by_distance)
    assert (found.prior is None) == (model.prior is None)
    if found.prior is not None:
        assert torch.equal(found.prior.counts, model.prior.counts)
    assert not any(part.training for part in found.network.modules())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"two": True},
        {"two": True, "target_alpha": None},
        {"prior": False},
        {"num_special": 9, "layers": 1, "tied": False},
        {"num_hashes": 1, "alpha": 1, "layers": 2},
    ],
    ids=str,
)
def test_every_part_comes_back_as_it_was(tmp_path, options):
    model = made(**options)
    save(model, tmp_path / "model", training=TRAINING, metrics=METRICS)
    found = load(tmp_path / "model")
    assert_same(found.model, model)
    assert (found.training, found.metrics) == (TRAINING, METRICS)
    assert json.loads((tmp_path / "model" / "metrics.json").read_text()) == METRICS
    expected = {"README.md", "config.json", "model.safetensors", "bloom.safetensors", "vocab.arrow", "metrics.json"}
    expected |= {"target_bloom.safetensors", "targets.arrow"} if options.get("two") else set()
    expected |= {"prior.safetensors"} if options.get("prior", True) else set()
    expected |= {"repetition.safetensors"} if model.repetition is not None else set()
    assert {file.name for file in (tmp_path / "model").iterdir()} == expected


def test_what_you_wrote_in_the_card_stays(tmp_path, one):
    shutil.copytree(one, tmp_path / "model")
    card, mine = tmp_path / "model" / "README.md", "Gemüse, and a byte: ".encode() + b"\xff"
    assert b"Gem" not in card.read_bytes()
    card.write_bytes(b"\xef\xbb\xbf---\nlicense: mine\n---\n" + mine)
    save(made(), tmp_path / "model", training=TRAINING, metrics=METRICS)
    assert card.read_bytes().startswith(b"---\nlicense: mine\n---\n")
    assert mine in card.read_bytes()


@pytest.mark.parametrize("how", ["too long", "elsewhere"])
def test_a_card_that_is_not_ours_to_read_is_not_carried_over(tmp_path, one, how):
    folder = shutil.copytree(one, tmp_path / "model")
    card, other = folder / "README.md", tmp_path / "secret"
    other.write_text("secret" * (MAX_CARD_BYTES if how == "too long" else 1))
    card.unlink()
    shutil.copy(other, card) if how == "too long" else card.symlink_to(other)
    with pytest.raises(InputError, match=r"README.md leads out of its folder, or has more than 1,048,576 bytes"):
        save(made(), folder, training=TRAINING, metrics=METRICS)
    assert_same(load(folder).model, made())


def test_a_folder_from_before_a_choice_is_read_as_it_was_then(tmp_path):
    model = made(**LEGACY_DEFAULTS)
    save(model, tmp_path / "model", training=TRAINING, metrics=METRICS)
    edit(tmp_path / "model", config=dict.fromkeys(LEGACY_DEFAULTS))
    assert_same(load(tmp_path / "model").model, model)
    assert load(tmp_path / "model").model.config == ModelConfig(**SIZES, **LEGACY_DEFAULTS)


def test_whole_numbers_are_fractions_and_what_may_be_missing_may_be_null(tmp_path, one):
    folder = shutil.copytree(one, tmp_path / "model")
    edit(folder, config={"dropout": 0, "hash_seed": 10**12})
    config = load(folder).model.config
    assert (config.dropout, config.hash_seed) == (0, 10**12)


def edit(folder: Path, *, config=None, files=None, remove=(), keep=()) -> None:
    """Change a folder and make its checksums right: config None takes a name out; files change their tensors."""
    manifest = json.loads((folder / "config.json").read_text())
    for name, value in (config or {}).items():
        manifest["model"].pop(name, None)
        if value is not None:
            manifest["model"][name] = None if value == "null" else value
    for name, change in (files or {}).items():
        tensors = {key: part.clone() for key, part in load_file(folder / name).items()}
        tensors = change(tensors) or tensors
        save_file({key: part.contiguous() for key, part in tensors.items()}, folder / name)
    kept = {name: (folder / name).read_bytes() for name in keep}
    for name in ("config.json", *remove, *keep):
        (folder / name).unlink()
    folder_module._seal(folder, "model", {"model": manifest["model"], "training": manifest["training"]})
    for name, data in kept.items():
        (folder / name).write_bytes(data)


def put(name: str, *where_and_what):
    """A change that sets one number, or all, of a tensor."""
    *where, what = where_and_what

    def change(tensors):
        tensors[name][tuple(where)] = what

    return change


def swap(name: str, row: int):
    """Exchange the first two numbers of a row, or of all."""

    def change(tensors):
        tensors[name][row, [0, 1]] = tensors[name][row, [1, 0]]

    return change


def drop(name):
    return lambda tensors: {key: part for key, part in tensors.items() if key != name}


def cast(name, kind):
    return lambda tensors: tensors | {name: tensors[name].to(kind)}


def cut(name):
    return lambda tensors: tensors | {name: tensors[name][:-1]}


SAVE_AGAIN = "save (the model|it) again"
NO_SIZE = "is not a valid option of a model; save it again"
CONTRADICT = "bloom.safetensors: hash tables contradict one another"
PRIOR = "prior.safetensors: counts below −1"
REFUSED = {
    "no num_ids": ({"config": {"num_ids": None}}, "config.json does not describe a model: 'num_ids' is unknown or"),
    "an unknown name": ({"config": {"colour": 3}}, "config.json does not describe a model: 'colour' is unknown or"),
    "a size as text": ({"config": {"dim": "8"}}, f"config.json: dim='8' {NO_SIZE}"),
    "a size as a fraction": ({"config": {"dim": 8.0}}, f"config.json: dim=8.0 {NO_SIZE}"),
    "a truth value for a size": ({"config": {"layers": True}}, f"config.json: layers=True {NO_SIZE}"),
    "no size": ({"config": {"dim": "null"}}, f"config.json: dim=None {NO_SIZE}"),
    "a number for a truth value": ({"config": {"tied": 1}}, f"config.json: tied=1 {NO_SIZE}"),
    "a number for a choice": ({"config": {"softmax": 3}}, f"config.json: softmax=3 {NO_SIZE}"),
    "a size below zero": ({"config": {"dim": -8}}, f"config.json: dim=-8 {NO_SIZE}"),
    "more than the files hold": ({"config": {"ffn_dim": 10**6}}, f"config.json: ffn_dim=1000000 {NO_SIZE}"),
    "an impossible model": ({"config": {"heads": 3}}, "config.json: .*heads=3"),
    "more layers": (
        {"config": {"layers": 4}},
        r"model.safetensors holds \d+ tensors; the model of config.json has \d+",
    ),
    "fewer layers": ({"config": {"layers": 2}}, r"model.safetensors holds \d+ tensors; the model of config.json has"),
    "another width": ({"config": {"dim": 6}}, "model.safetensors: .* does not fit the model of config.json; save it"),
    "no bias": ({"files": {"model.safetensors": drop("bias")}}, r"model.safetensors holds \d+ tensors; the model"),
    "a bias of doubles": (
        {"files": {"model.safetensors": cast("bias", torch.float64)}},
        r"model.safetensors: 'bias' \('F64', '\d+'\) does not fit the model of config.json",
    ),
    "a bias cut short": (
        {"files": {"model.safetensors": cut("bias")}},
        r"model.safetensors: 'bias' \('F32', '\d+'\) does not fit the model of config.json",
    ),
    "no starts": ({"files": {"bloom.safetensors": drop("starts")}}, r"bloom.safetensors holds .*order \(I32\), starts"),
    "starts of 32 bits": (
        {"files": {"bloom.safetensors": cast("starts", torch.int32)}},
        r"bloom.safetensors holds .*; order \(I32\), starts \(I64\) and table \(I32\) are expected",
    ),
    "a bucket too high": ({"files": {"bloom.safetensors": put("table", 3, 1, 8)}}, CONTRADICT),
    "a bucket below zero": ({"files": {"bloom.safetensors": put("table", 3, 1, -1)}}, CONTRADICT),
    "an id too high": ({"files": {"bloom.safetensors": put("order", 1, 29, 30)}}, CONTRADICT),
    "an id below zero": ({"files": {"bloom.safetensors": put("order", 1, 0, -1)}}, CONTRADICT),
    "ids not in order": ({"files": {"bloom.safetensors": swap("order", 1)}}, CONTRADICT),
    "an id twice": ({"files": {"bloom.safetensors": lambda t: put("order", 0, 0, t["order"][0, 1])(t)}}, CONTRADICT),
    "a start too late": ({"files": {"bloom.safetensors": put("starts", 1, 3, 10)}}, CONTRADICT),
    "a first start of one": ({"files": {"bloom.safetensors": put("starts", 0, 0, 1)}}, CONTRADICT),
    "a last start too late": ({"files": {"bloom.safetensors": put("starts", 1, 8, 31)}}, CONTRADICT),
    "tables of fewer ids": (
        {"files": {"bloom.safetensors": cut("table")}},
        r"bloom.safetensors: hash tables of shapes \(29, 2\), \(2, 30\), \(2, 9\) do not belong together",
    ),
    "a hash missing": (
        {"files": {"bloom.safetensors": cut("starts")}},
        r"bloom.safetensors: hash tables of shapes \(30, 2\), \(2, 30\), \(1, 9\) do not belong together",
    ),
    "counts of fewer ids": ({"files": {"prior.safetensors": cut("counts")}}, "prior.safetensors holds .* is expected"),
    "counts of 64 bits": (
        {"files": {"prior.safetensors": cast("counts", torch.int64)}},
        r"prior.safetensors holds .*; {'counts': \('I32', '30'\)} is expected",
    ),
    "a count below −1": ({"files": {"prior.safetensors": put("counts", 4, -2)}}, PRIOR),
    "a prior that is not listed": ({"keep": ["prior.safetensors"]}, "prior.safetensors is not listed in config.json"),
    "a number for another distance": (
        {"files": {"repetition.safetensors": cut("by_distance")}},
        r"repetition.safetensors holds .*; by_distance \(F32, 1 or 6\) is expected",
    ),
    "a number that is none": (
        {"files": {"repetition.safetensors": put("by_distance", 2, float("nan"))}},
        "repetition.safetensors: a number is not finite",
    ),
    "repetition that is not listed": (
        {"keep": ["repetition.safetensors"]},
        "repetition.safetensors is not listed in config.json",
    ),
    "no targets": ({"remove": ["targets.arrow"]}, "config.json lists no targets.arrow, but its model needs it"),
    "no tables of targets": ({"remove": ["target_bloom.safetensors"]}, "config.json lists no target_bloom.safetensors"),
}
OF_TARGETS = ("no targets", "no tables of targets")


@pytest.mark.parametrize("what", REFUSED)
def test_a_part_that_does_not_fit_the_rest_is_refused(tmp_path, one, two, what):
    changes, message = REFUSED[what]
    folder = shutil.copytree(two if what in OF_TARGETS else one, tmp_path / "model")
    edit(folder, **changes)
    with pytest.raises(InputError, match=message) as error:
        load(folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)


def test_the_scale_of_an_older_prior_is_left_alone(tmp_path, one):
    """Older folders also hold a weight and a temperature, which nothing needs any more."""
    folder = tmp_path / "copy"
    shutil.copytree(one, folder)

    def with_scale(tensors):
        return tensors | {"scale": torch.tensor([0.5, 2.0])}

    edit(folder, files={"prior.safetensors": with_scale})
    assert torch.equal(load(folder).model.prior.counts, load(one).model.prior.counts)


def test_tables_and_names_of_other_sizes_are_refused(tmp_path, one):
    folder = shutil.copytree(one, tmp_path / "model")
    edit(folder, config={"num_ids": 32})
    with pytest.raises(InputError, match="30 ids, 2 hashes, 8 buckets, and 30 names; config.json says 32, 2, 8, 32"):
        load(folder)


def test_parts_of_another_model_are_refused(tmp_path, one, two):
    """The same number of tokens, but other names or ids."""
    for file, message in (
        ("vocab.arrow", "tables of 30 ids, 2 hashes, 8 buckets, and 14 names; config.json says 30, 2, 8, 30"),
        ("bloom.safetensors", "tables of 14 ids, 2 hashes, 5 buckets, and 30 names; config.json says 30, 2, 8, 30"),
        ("targets.arrow", "tables of 14 ids, 2 hashes, 5 buckets, and 30 names; config.json says 14, 2, 5, 14"),
        ("target_bloom.safetensors", "tables of 30 ids, 2 hashes, 8 buckets, and 14 names; config.json says 14, 2, 5"),
    ):
        folder = shutil.copytree(two, tmp_path / file.split(".")[0] / "model")
        others = {"vocab.arrow": "targets.arrow", "bloom.safetensors": "target_bloom.safetensors"}
        others |= {value: key for key, value in others.items()}
        shutil.copy(two / others[file], folder / file)
        edit(folder)
        with pytest.raises(InputError, match=re.escape(message)):
            load(folder)


def test_a_header_of_tensors_may_have_two_megabytes(tmp_path, one):
    folder = shutil.copytree(one, tmp_path / "model")
    data = (folder / "bloom.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for longer, message in ((2 * 2**20, None), (2 * 2**20 + 8, "its header has 2,097,160 bytes; up to 2,097,152 are")):
        header = data[8 : 8 + size].ljust(longer)
        (folder / "bloom.safetensors").write_bytes(longer.to_bytes(8, "little") + header + data[8 + size :])
        edit(folder)
        with pytest.raises(InputError, match=message) if message else nullcontext():
            load(folder)


def test_a_write_that_fails_is_told(tmp_path):
    with pytest.raises(OSError, match="model.safetensors cannot be written: "):
        write_tensors({"a": torch.zeros(3)}, tmp_path / "gone" / "model.safetensors")


def test_damage_is_refused_unless_it_is_not_to_be_verified(tmp_path, one):
    folder = shutil.copytree(one, tmp_path / "model")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="model.safetensors"):
        load(folder)
    assert load(folder, verify=False).model.config.dim == 8


@pytest.mark.parametrize("length", [10_001, 60_001])
def test_a_history_too_long_to_be_read_is_thinned(tmp_path, length):
    history = [
        {"step": step, "recall_at_10": 0.5, "loss": 1.0, "seconds": 2.0, "a": 1, "b": 2} for step in range(length)
    ]
    save(made(), tmp_path / "model", training=TRAINING, metrics=METRICS | {"history": history})
    kept = load(tmp_path / "model").metrics["history"]
    assert 5000 < len(kept) <= 10_000
    assert kept[-1] == history[-1]
