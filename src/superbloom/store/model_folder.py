"""The model folder: plain files that are verified before they are used, without pickle (docs/formats.md).

    config.json         manifest: model config, share of repeats, how it was trained, checksums of the files below
    model.safetensors   weights            bloom.safetensors   tables of the hash functions
    vocab.arrow         names              metrics.json        what was measured
    README.md           the model card (card.py), yours to edit
A trained model adds prior.safetensors: how often each id occurs in training, and memory.safetensors: pairs and rows of
training (memory_file.py). A model with a second vocabulary adds target_bloom.safetensors and targets.arrow.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superbloom.config import ModelConfig
from superbloom.corpus import Vocab, checked_share
from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.model import Model, Network, Prior, Repetition
from superbloom.model.repetition import DISTANCES
from superbloom.storage import (
    CARD_FILE,
    OPTIONAL_FILES,
    REQUIRED_FILES,
    Mapped,
    Version,
    leads_out,
    new_folder,
    read_consistently,
    read_folder,
    read_json,
    version,
)
from superbloom.store.card import card
from superbloom.store.memory_file import MEMORY_FILE, load_memory, write_memory
from superbloom.store.tensors import layout_of, load_tensors, write_tensors

# Defaults for folders written before these options existed.
LEGACY_DEFAULTS = {"spread": False, "inputs": "tokens", "mask_as": "element", "distance": False}
MAX_METRICS_BYTES = 16 * 2**20
MAX_HISTORY = 10_000  # validations kept in metrics.json
MAX_CARD_BYTES = 2**20
WEIGHTS_FILE = "model.safetensors"


def save(
    model: Model,
    folder: str | Path,
    *,
    training: dict[str, Any],
    metrics: dict[str, Any],
    overwrite: bool = True,
) -> None:
    """Write the model folder, whole or not at all. overwrite=False refuses to replace a model."""
    content = {"model": asdict(model.config), "repeats": model.repeats, "training": training}
    with new_folder(folder, "model", content, overwrite) as temporary:
        weights = {name: part.contiguous() for name, part in model.network.state_dict().items()}
        write_tensors(weights, temporary / WEIGHTS_FILE)
        write_tensors(_tables(model.bloom), temporary / "bloom.safetensors")
        model.vocab.write(temporary / "vocab.arrow")
        if model.target_vocab is not model.vocab:
            write_tensors(_tables(model.target_bloom), temporary / "target_bloom.safetensors")
            model.target_vocab.write(temporary / "targets.arrow")
        if model.prior is not None:
            write_tensors({"counts": model.prior.counts}, temporary / "prior.safetensors")
        if model.repetition is not None:
            write_tensors({"by_distance": model.repetition.by_distance}, temporary / "repetition.safetensors")
        if model.memory is not None:
            write_memory(model.memory, temporary / MEMORY_FILE)
        (temporary / "metrics.json").write_text(json.dumps(_thinned(metrics), indent=2) + "\n")
        name = Path(folder).resolve().name
        text = card(model, training, metrics, name=name, before=_card_of(Path(folder)))
        (temporary / CARD_FILE).write_text(text, encoding="utf-8", errors="surrogateescape")


def _thinned(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics with at most MAX_HISTORY validations, evenly spaced and including the last."""
    history = metrics.get("history", [])
    stride = -(-len(history) // MAX_HISTORY)
    return metrics if stride <= 1 else metrics | {"history": history[::-stride][::-1]}


def _card_of(folder: Path) -> str:
    """The card of the folder that is replaced, empty if it has none. Bytes that are not UTF-8 survive."""
    file = folder / CARD_FILE
    if not file.is_file():
        return ""
    if leads_out(file) or file.stat().st_size > MAX_CARD_BYTES:
        raise InputError(f"{file} leads out of its folder, or has more than {MAX_CARD_BYTES:,} bytes; move it away")
    return file.read_text(encoding="utf-8-sig", errors="surrogateescape")


class Stored(NamedTuple):
    """A loaded model, how it was trained, what was measured, and its memory-mapped files."""

    model: Model
    training: dict[str, Any]
    metrics: dict[str, Any]
    mapped: Mapped


def load(folder: str | Path, *, verify: bool = True, copy: bool = False, weights: bool = True) -> Stored:
    """A model as it was saved. InputError names any file that is not what was written, before the file is used.

    Large files are memory-mapped and must not be written in place while the model is used (storage/mapped.py).
    copy=True reads all files into memory. verify=False skips checksums. weights=False leaves the network without its
    weights, for a process that reads names and leaves the computing to others.
    """
    return read_consistently(folder, lambda: _load(Path(folder), verify, Mapped(copy), weights))


def _load(folder: Path, verify: bool, mapped: Mapped, weights: bool) -> Stored:
    before = _versions(folder)
    try:
        manifest = read_folder(folder, "model", verify, unread=() if weights else (WEIGHTS_FILE,))
        model = _load_model(folder, manifest, mapped, weights)
        metrics = read_json(folder / "metrics.json", MAX_METRICS_BYTES)
        return Stored(model, manifest["training"], metrics, mapped)
    finally:
        if _versions(folder) != before:  # in place of any other error: what was verified is not what was read
            raise InputError(f"{folder} was changed while it was loaded; load it again once it is complete")


def _versions(folder: Path) -> dict[str, Version]:
    files = (folder / name for name in (*REQUIRED_FILES["model"], *OPTIONAL_FILES["model"]))
    return {file.name: version(file.stat()) for file in files if file.exists()}


def _load_model(folder: Path, manifest: dict[str, Any], mapped: Mapped, weights: bool) -> Model:
    config = _read_config(folder / "config.json", manifest)
    network = _load_network(folder / WEIGHTS_FILE, config, mapped, weights)
    vocab = _open_vocab(folder / "vocab.arrow", mapped)
    bloom = _load_bloom(folder / "bloom.safetensors", config.alpha, config.num_special, mapped)
    _agree(folder, config, bloom, vocab, config.num_ids, config.num_buckets)
    prior = _load_prior(folder / "prior.safetensors", manifest, config, mapped)
    repetition = _load_repetition(folder / "repetition.safetensors", manifest, mapped)
    repeats = checked_share(folder / "config.json", "repeats", manifest.get("repeats"))
    if config.num_target_ids is None:
        memory = None
        if _is_listed(folder / MEMORY_FILE, manifest):
            memory = load_memory(folder / MEMORY_FILE, config.num_ids, mapped)
        return Model(network, bloom, vocab, bloom, vocab, prior, repetition, memory, repeats)
    for name in ("targets.arrow", "target_bloom.safetensors"):
        if name not in manifest["files"]:
            raise InputError(f"{folder / 'config.json'} lists no {name}, but its model needs it; save it again")
    target_vocab = _open_vocab(folder / "targets.arrow", mapped)
    target_bloom = _load_bloom(folder / "target_bloom.safetensors", config.target_alpha or config.alpha, 4, mapped)
    _agree(folder, config, target_bloom, target_vocab, config.num_target_ids, config.output_buckets)
    return Model(network, bloom, vocab, target_bloom, target_vocab, prior)


def _read_config(path: Path, manifest: dict[str, Any]) -> ModelConfig:
    """The config in a manifest. Its types are those of ModelConfig, and its sizes are possible for these files."""
    given, known = manifest["model"], {field.name: field.default for field in fields(ModelConfig)}
    if "num_ids" not in given or not given.keys() <= known.keys():
        differing = min((given.keys() - known.keys()) or ["num_ids"])
        raise InputError(f"{path} does not describe a model: {differing!r:.80} is unknown or missing; save it again")
    # subtle: every size is a number of rows, columns or ids in the files, so it cannot exceed their bytes
    most = sum(entry["bytes"] for entry in manifest["files"].values())
    for name, value in given.items():
        default = known[name]
        kind = int if default in (None, MISSING) else type(default)
        right = type(value) is kind or (value is None and default is None) or (type(value) is int and kind is float)
        absurd = type(value) is int and name not in ("hash_seed", "seq_len") and not 0 <= value <= most
        if absurd or not right:
            raise InputError(f"{path}: {name}={reprlib.repr(value)} is not a valid option of a model; save it again")
    try:
        return ModelConfig(**LEGACY_DEFAULTS | given)
    except InputError as error:
        raise InputError(f"{path}: {' '.join(str(error).split()):.200}") from None


def _load_network(path: Path, config: ModelConfig, mapped: Mapped, weights: bool) -> Network:
    """A network with the weights of a file, or on "meta" without. Every name and shape must match the config."""
    found = layout_of(path)
    # subtle: build one layer and count tensors first, so that an absurd config cannot make us build thousands
    expected = _layout(path, replace(config, layers=1))
    layer = {name for name in expected if name.startswith("layers.0.")}
    number = len(expected) + (config.layers - 1) * len(layer)
    if len(found) != number:
        raise InputError(f"{path} holds {len(found):,} tensors; the model of config.json has {number:,}: save it again")
    for name in layer:
        rest = name.removeprefix("layers.0.")
        expected |= {f"layers.{i}.{rest}": expected[name] for i in range(1, config.layers)}
    if found != expected:
        name, kind = min(found.items() - expected.items())
        raise InputError(f"{path}: {name!r:.80} {kind} does not fit the model of config.json; save it again")
    with torch.device("meta"):
        network = Network(config)
    if weights:
        network.load_state_dict(load_tensors(path, mapped), assign=True)
    else:
        mapped.watch(path)
    network.eval()
    return network


def _layout(path: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    try:
        with torch.device("meta"):
            parts = Network(config).state_dict()
    except (RuntimeError, TypeError, OverflowError):
        raise InputError(f"{path}: the model of config.json is larger than any tensor; save it again") from None
    return {name: ("F32", *map(str, part.shape)) for name, part in parts.items()}


def _load_bloom(path: Path, alpha: int, num_special: int, mapped: Mapped) -> BloomHash:
    found = {name: (kind, len(shape)) for name, (kind, *shape) in layout_of(path).items()}
    if found != {"order": ("I32", 2), "starts": ("I64", 2), "table": ("I32", 2)}:
        raise InputError(f"{path} holds {found!s:.200}; order (I32), starts (I64) and table (I32) are expected")
    tables = load_tensors(path, mapped)
    bloom = BloomHash(tables["table"], tables["order"], tables["starts"], alpha, num_special)
    try:
        bloom.verify()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return bloom


def _load_prior(path: Path, manifest: dict[str, Any], config: ModelConfig, mapped: Mapped) -> Prior | None:
    """The prior of the ids that are predicted; None in older folders and untrained models."""
    if not _is_listed(path, manifest):
        return None
    expected = {"counts": ("I32", str(config.num_target_ids or config.num_ids))}
    held = {name: shape for name, shape in layout_of(path).items() if name != "scale"}  # older folders have a scale
    if held != expected:
        raise InputError(f"{path} holds {held!s:.200}; {expected} is expected: save the model again")
    counts = load_tensors(path, mapped)["counts"]
    if int(counts.min()) < -1:
        raise InputError(f"{path}: counts below −1: save the model again")
    return Prior(counts)


def _load_repetition(path: Path, manifest: dict[str, Any], mapped: Mapped) -> Repetition | None:
    """What the context says about its own buckets; None in older folders and in models without it."""
    if not _is_listed(path, manifest):
        return None
    held, most = layout_of(path), 1 + len(DISTANCES)
    if held not in [{"by_distance": ("F32", str(count))} for count in (1, most)]:
        raise InputError(f"{path} holds {held!s:.200}; by_distance (F32, 1 or {most}) is expected")
    numbers = load_tensors(path, mapped)["by_distance"]
    if not bool(numbers.isfinite().all()):
        raise InputError(f"{path}: a number is not finite; save the model again")
    return Repetition(numbers)


def _is_listed(path: Path, manifest: dict[str, Any]) -> bool:
    """Whether a file that a model may lack belongs to it; InputError if it is there, but not listed."""
    if path.name not in manifest["files"] and path.exists():
        raise InputError(f"{path} is not listed in config.json; save the model again")
    return path.name in manifest["files"]


def _agree(folder: Path, config: ModelConfig, bloom: BloomHash, vocab: Vocab, num_ids: int, num_buckets: int) -> None:
    found = (bloom.num_ids, bloom.num_hashes, bloom.num_buckets, len(vocab))
    if found != (num_ids, config.num_hashes, num_buckets, num_ids):
        raise InputError(
            f"{folder}: tables of {bloom.num_ids:,} ids, {bloom.num_hashes} hashes, {bloom.num_buckets:,} buckets, and "
            f"{len(vocab):,} names; config.json says {num_ids:,}, {config.num_hashes}, {num_buckets:,}, {num_ids:,}"
        )


def _open_vocab(path: Path, mapped: Mapped) -> Vocab:
    return Vocab.open(path, copy=not mapped.takes(path))


def _tables(bloom: BloomHash) -> dict[str, Tensor]:
    return {"table": bloom.table.contiguous(), "order": bloom.order, "starts": bloom.starts}
