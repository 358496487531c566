"""`superbloom inspect`: what a corpus or model folder holds, and what it knows about some names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superbloom.commands.console import print_json, print_tree
from superbloom.commands.options import Json

if TYPE_CHECKING:
    from superbloom.model import Model


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A corpus or model folder.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Names to look up in it.")] = None,
    json_: Json = False,
) -> None:
    """What is in a corpus or model folder; for names: id, count, digest and who shares their buckets."""
    found = _inspect(folder, names or [])
    if json_:
        print_json(found)
    else:
        print_tree({name: _sentences(facts) for name, facts in found.items()})


def _inspect(folder: Path, names: list[str]) -> dict[str, Any]:
    from superbloom.storage import MANIFESTS, read_folder

    kind = next((kind for kind, manifest in MANIFESTS.items() if (folder / manifest).is_file()), "corpus")
    manifest = read_folder(folder, kind, verify=False)  # the files that are opened below are verified there
    if kind == "model":
        return _model_facts(folder, manifest, names)
    from superbloom.corpus import Corpus

    vocab = Corpus.open(folder).vocab
    if not names:
        return {name: manifest[name] for name in ("format", "version", "counts", "info", "split")}
    ids = {name: vocab.id(name) for name in names}
    return {name: {"id": id_, "count": vocab.count(id_)} for name, id_ in ids.items()}


def _model_facts(folder: Path, manifest: dict[str, Any], names: list[str]) -> dict[str, Any]:
    from superbloom.store import load

    model, training, metrics, _ = load(folder)
    if names:
        return {name: _digest_facts(model, name) for name in names}
    facts = {name: manifest[name] for name in ("format", "version", "model")}
    measured = metrics.get("test")
    recall = measured.get("recall", {}) if isinstance(measured, dict) else {}
    return facts | {
        "parameters": model.network.num_parameters(),
        "tokens": model.config.num_tokens,
        "steps": training.get("steps"),
        **({"test_recall": recall} if recall else {}),
    }


def _digest_facts(model: Model, name: str) -> dict[str, Any]:
    """The id of a name, its tokens, and the most frequent names it shares each bucket with."""
    from superbloom.predict import facts_of

    facts = asdict(facts_of(model, name))
    return {key: facts[key] for key in ("id", "count", "digest", "buckets")}


def _sentences(facts: Any) -> Any:
    """Facts for people: the buckets of a name as sentences."""
    if not isinstance(facts, dict) or "buckets" not in facts:
        return facts
    mates = {f"bucket {b['bucket']} of hash {b['hash']} is shared with": b["mates"] for b in facts["buckets"]}
    return {key: value for key, value in facts.items() if key != "buckets"} | mates
