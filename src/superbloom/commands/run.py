"""What the commands train, evaluate, predict, recommend, extend and inspect do, as functions of folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from superbloom.api import Superbloom
from superbloom.config import split_options
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.runtime import main_process
from superbloom.storage import only_writer, read_json, write_atomically
from superbloom.training.logs import LOG, PICTURES

RUN_FILE = "run.json"
RUN_PARTS = (LOG, PICTURES)
PLACE = ("devices", "strategy", "workers")


def train(
    corpus_folder: Path,
    out: Path,
    preset: str | None,
    resume: bool,
    overwrite: bool,
    options: dict[str, Any],
    from_model: Path | None = None,
) -> dict[str, Any]:
    """Train on a corpus folder into a model folder; interrupted, the run folder beside it is enough to go on."""
    if resume and overwrite:
        raise InputError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    out = out.resolve()
    run = out.with_name(out.name + ".run")
    corpus = Corpus.open(corpus_folder)
    base = None if from_model is None else str(from_model.resolve())
    settings: dict[str, Any] = {"preset": preset, "from_model": base}
    settings["model"], settings["train"] = split_options(options)
    with only_writer(out, "model"):
        if resume and (run / RUN_FILE).is_file():
            settings = _resumed(run / RUN_FILE, settings, corpus)
        if not resume:
            _check_clearable(run, overwrite)
        superbloom = Superbloom(settings["preset"], **settings["model"])
        # How many processes there are is no part of the run.
        kept = {name: value for name, value in settings["train"].items() if name not in PLACE}

        def write(**more: Any) -> None:
            write_atomically(run / RUN_FILE, json.dumps(settings | {"train": kept, **more}, indent=2).encode())

        def begin() -> None:
            if not resume:
                _clear(run)
            write()

        superbloom.fit(
            corpus, from_model=settings["from_model"], run=run, resume=resume, begin=begin, **settings["train"]
        )
        superbloom.save_pretrained(out)
        if main_process() and not superbloom.training["interrupted"]:
            write(finished=True)
    result: dict[str, Any] = {
        "model": str(out),
        "run": str(run),
        "parameters": superbloom.model.network.num_parameters(),
        **{name: superbloom.training[name] for name in ("steps", "taken", "seconds", "interrupted")},
        "learnt from": "text" if corpus.vocab.is_text else "interactions" if corpus.is_ordered else "sequences",
        "history": superbloom.metrics["history"],
    }
    return result


def _check_clearable(run: Path, overwrite: bool) -> None:
    """Raise InputError if a new run in this folder would lose what it holds."""
    from superbloom.training.checkpoints import checkpoints

    ours = {RUN_FILE, *RUN_PARTS, *(file.name for file in checkpoints(run))}
    strangers = {file.name for file in run.glob("*") if not file.name.startswith(".")} - ours
    if strangers:
        raise InputError(f"{run} also holds {min(strangers)!r}, no part of a run; move it away or choose another --out")
    finished = (run / RUN_FILE).is_file() and read_json(run / RUN_FILE).get("finished")
    if checkpoints(run) and not overwrite and not finished and main_process():
        raise InputError(f"{run} holds an interrupted run; --resume goes on with it, --overwrite starts anew")


def _clear(run: Path) -> None:
    """Remove an earlier run: its checkpoints first, so that half of it is not taken for a run."""
    from superbloom.training.checkpoints import checkpoints

    for part in (*checkpoints(run), *(run / name for name in (*RUN_PARTS, RUN_FILE))):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def _resumed(path: Path, asked: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """The settings of the interrupted run, with the training options given now on top."""
    from superbloom.training.checkpoints import differences

    stored = {"preset": None, "from_model": None} | read_json(path)
    kinds = {"model": dict, "train": dict, "preset": str | None, "from_model": str | None}
    # subtle: what we wrote is a whole path; another name would be looked for on the hub
    named = isinstance(stored["from_model"], str) and not Path(stored["from_model"]).is_absolute()
    if named or not all(isinstance(stored.get(name), kind) for name, kind in kinds.items()):
        raise InputError(f"{path} was not written by superbloom, or is damaged; train without --resume")
    if asked["from_model"] not in (None, stored["from_model"]):
        raise InputError(f"the run began with from_model={stored['from_model']}; leave --from-model out with --resume")
    began, now = (
        asdict(Superbloom(preset, **model).config_for(corpus))
        for preset, model in (
            (stored["preset"], stored["model"]),
            (asked["preset"] or stored["preset"], stored["model"] | asked["model"]),
        )
    )
    changed = differences(began, now)
    if changed:
        raise InputError(f"the run began with {changed}; leave these options out with --resume, or train anew")
    length = {"steps", "minutes"}
    kept = {
        name: value for name, value in stored["train"].items() if not (name in length and length & set(asked["train"]))
    }
    return stored | {"train": kept | asked["train"], "finished": False}
