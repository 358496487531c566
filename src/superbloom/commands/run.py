"""What `superbloom train` does with folders: open the corpus, train, save the model, keep the run folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from superbloom.api import Superbloom
from superbloom.config import split_options
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.storage import only_writer
from superbloom.training.checkpoints import differences
from superbloom.training.run_folder import SETTINGS_FILE, RunFolder, RunSettings


def train(
    corpus_folder: Path,
    out: Path,
    preset: str | None,
    resume: bool,
    overwrite: bool,
    options: dict[str, Any],
    from_model: Path | None = None,
) -> dict[str, Any]:
    """Train on a corpus folder into a model folder. The run folder beside it is enough to resume."""
    if resume and overwrite:
        raise InputError("--resume continues a run, --overwrite starts over; give one of them")
    out = out.resolve()
    path = out.with_name(out.name + ".run")
    corpus = Corpus.open(corpus_folder)
    base = None if from_model is None else str(from_model.resolve())
    settings = RunSettings(preset, base, *split_options(options))
    with only_writer(out, "model"):
        if resume and (path / SETTINGS_FILE).is_file():
            settings = _resumed(RunSettings.read(path), settings, corpus)
        run = RunFolder(path, settings, overwrite)
        superbloom = Superbloom(settings.preset, **settings.model)
        superbloom.fit(corpus, from_model=settings.from_model, run=run, resume=resume, **settings.train)
        superbloom.save_pretrained(out)
        if not superbloom.training["interrupted"]:
            run.mark_finished()
    return {
        "model": str(out),
        "run": str(path),
        "parameters": superbloom.model.network.num_parameters(),
        **{name: superbloom.training[name] for name in ("steps", "taken", "seconds", "interrupted")},
        "learnt from": "text" if corpus.vocab.is_text else "interactions" if corpus.is_ordered else "sequences",
        "history": superbloom.metrics["history"],
    }


def _resumed(stored: RunSettings, given: RunSettings, corpus: Corpus) -> RunSettings:
    """The settings of an interrupted run with the training options given now; InputError if the model differs."""
    if given.from_model not in (None, stored.from_model):
        raise InputError(f"the run began with from_model={stored.from_model}; leave --from-model out with --resume")
    began = Superbloom(stored.preset, **stored.model).config_for(corpus)
    now = Superbloom(given.preset or stored.preset, **stored.model | given.model).config_for(corpus)
    if changed := differences(asdict(began), asdict(now)):
        raise InputError(f"the run began with {changed}; leave these options out with --resume, or train without it")
    return stored.with_training(given.train)
