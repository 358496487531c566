"""The model folder: plain files, verified before anything is read from them, no pickle (docs/formats.md).

    config.json         manifest: model config, how it was trained, checksums of the files below
    model.safetensors   weights            bloom.safetensors   tables of the hash functions
    vocab.arrow         names              metrics.json        what was measured
    README.md           the model card, yours to edit
A model with a second vocabulary adds target_bloom.safetensors and targets.arrow.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from superbloom.config import ModelConfig
from superbloom.errors import InputError
from superbloom.folder import new_folder, read_folder
from superbloom.hashing import BloomHash
from superbloom.model import Model, Network
from superbloom.vocab import Vocab


def save(model: Model, folder: str | Path, *, training: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write the model folder, whole or not at all."""
    content = {"model": asdict(model.config), "training": training}
    with new_folder(folder, "model", content) as temporary:
        save_file(
            {name: part.contiguous() for name, part in model.network.state_dict().items()},
            temporary / "model.safetensors",
        )
        save_file(_tables(model.bloom), temporary / "bloom.safetensors")
        model.vocab.write(temporary / "vocab.arrow")
        if model.target_vocab is not model.vocab:
            save_file(_tables(model.target_bloom), temporary / "target_bloom.safetensors")
            model.target_vocab.write(temporary / "targets.arrow")
        (temporary / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        (temporary / "README.md").write_text(model_card(model, Path(folder).name, metrics), encoding="utf-8")


def load(folder: str | Path, *, verify: bool = True) -> Model:
    """A model as it was saved; any file that is not what was written is refused by name, before it is used."""
    folder = Path(folder)
    manifest = read_folder(folder, "model", verify)
    try:
        config = ModelConfig(**manifest["model"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'} does not describe a model ({error}); save it again") from None
    for name in ("model.safetensors", "bloom.safetensors", "vocab.arrow"):
        if name not in manifest["files"]:
            raise InputError(f"{folder / 'config.json'} lists no {name}; the folder is not a whole model")
    network = _load_network(folder / "model.safetensors", config)
    vocab = Vocab.open(folder / "vocab.arrow")
    bloom = _load_bloom(folder / "bloom.safetensors", config.alpha, config.num_special)
    _agree(folder, config, bloom, vocab, config.num_ids, config.num_buckets)
    if config.num_target_ids is None:
        return Model(network, bloom, vocab, bloom, vocab)
    target_vocab = Vocab.open(folder / "targets.arrow")
    target_bloom = _load_bloom(folder / "target_bloom.safetensors", config.target_alpha or config.alpha, 4)
    _agree(folder, config, target_bloom, target_vocab, config.num_target_ids, config.output_buckets)
    return Model(network, bloom, vocab, target_bloom, target_vocab)


def read_metrics(folder: str | Path) -> dict[str, Any]:
    """What was measured when the model was made."""
    metrics: dict[str, Any] = json.loads((Path(folder) / "metrics.json").read_text())
    return metrics


def _load_network(path: Path, config: ModelConfig) -> Network:
    """Weights memory-mapped into a network built without storage; every name and shape has to fit."""
    shapes = _shapes(path)
    # subtle: count the layers of the file first, so that an absurd config cannot make us build them
    layers = len({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    expected: dict[str, tuple[int, ...]] = {}
    if layers == config.layers:
        with torch.device("meta"):
            network = Network(config)
        expected = {name: tuple(part.shape) for name, part in network.state_dict().items()}
    if shapes != expected:
        different = sorted(shapes.items() ^ expected.items()) or [("layers", (layers,))]
        name, shape = different[0]
        raise InputError(f"{path}: {name} {shape} does not fit the model described in config.json; save it again")
    network.load_state_dict(load_file(path), assign=True)
    network.eval()
    return network


def _load_bloom(path: Path, alpha: int, num_special: int) -> BloomHash:
    shapes = _shapes(path)
    if sorted(shapes) != ["order", "starts", "table"] or any(len(shape) != 2 for shape in shapes.values()):
        raise InputError(f"{path} holds {sorted(shapes)}; tables order, starts and table are expected")
    tables = load_file(path)
    kinds = {name: tensor.dtype for name, tensor in tables.items()}
    if kinds != {"order": torch.int32, "starts": torch.int64, "table": torch.int32}:
        raise InputError(f"{path} holds tables of types {kinds}; int32, int64 and int32 are expected")
    bloom = BloomHash(tables["table"], tables["order"], tables["starts"], alpha, num_special)
    try:
        bloom.verify()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return bloom


def _agree(folder: Path, config: ModelConfig, bloom: BloomHash, vocab: Vocab, num_ids: int, num_buckets: int) -> None:
    found = (bloom.num_ids, bloom.num_hashes, bloom.num_buckets, len(vocab))
    if found != (num_ids, config.num_hashes, num_buckets, num_ids):
        raise InputError(
            f"{folder}: tables of {bloom.num_ids:,} ids, {bloom.num_hashes} hashes, {bloom.num_buckets:,} buckets, and "
            f"{len(vocab):,} names; config.json says {num_ids:,}, {config.num_hashes}, {num_buckets:,}, {num_ids:,}"
        )


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a sound safetensors file ({error}); copy it again") from None


def _tables(bloom: BloomHash) -> dict[str, Tensor]:
    return {"table": bloom.table.contiguous(), "order": bloom.order, "starts": bloom.starts}


def model_card(model: Model, name: str, metrics: dict[str, Any]) -> str:
    """A model card: what it is, how good it is, how to use it."""
    config = model.config
    lines = [
        "---\nlibrary_name: superbloom\ntags: [superbloom, bloom-filter, recommendation, entity-prediction]\n---",
        f"# {name}\n",
        f"A Superbloom over {config.num_ids:,} names: {config.num_hashes} hash(es), alpha={config.alpha}, "
        f"d={config.dim}, {config.layers} layer(s), {model.network.num_parameters():,} parameters.\n",
        "| measured on held-out rows | rec@1 | rec@10 | rec@20 |\n|---|---|---|---|",
    ]
    test = metrics.get("test", {})
    rows = {"this model": test.get("recall", {})} | test.get("yardsticks", {})
    lines += [
        f"| {row} | " + " | ".join(f"{v['value']:.3f}" for v in recall.values()) + " |"
        for row, recall in rows.items()
        if recall
    ]
    lines.append(
        f'\n```python\nfrom superbloom import MASK, Superbloom\n\nmodel = Superbloom.from_pretrained("{name}")\n'
        f'model.predict(["{model.vocab.name(0)}", MASK], k=10)\n```\n'.replace("\\", "\\\\")
    )
    return "\n".join(lines)
