"""`superbloom train`: train a model on a corpus folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superbloom.commands.console import command, print_json, q
from superbloom.commands.options import ADVANCED, CorpusFolder, Json, Out, Preset, may_overwrite, options_of
from superbloom.config import ModelConfig, TrainConfig, WriteOptions, split_options
from superbloom.errors import InputError
from superbloom.runtime import is_main_process

if TYPE_CHECKING:
    from superbloom.api import Superbloom
    from superbloom.corpus import Corpus
    from superbloom.training.run_folder import RunSettings


@options_of(TrainConfig, ModelConfig, panels=ADVANCED)
@options_of(WriteOptions)
def train(
    corpus: CorpusFolder,
    out: Out,
    preset: Preset = None,
    from_model: Annotated[
        Path | None, typer.Option(help="Begin with this model; names it does not know are added to it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run of the same --out, if there is one.")
    ] = False,
    json_: Json = False,
    **options: Any,
) -> None:
    """Train a model, by default for five minutes. Checkpoints and log are kept beside it, in OUT.run."""
    overwrite = may_overwrite(options)
    chosen = {name: value for name, value in options.items() if value is not None and name != "overwrite"}
    result = train_folder(corpus, out, preset, resume, overwrite, chosen, from_model)
    if not is_main_process():
        return
    if json_:
        print_json(result)
        return
    if result["behind"]:
        typer.echo(result["behind"])
    if result["interrupted"]:
        typer.echo(f"stopped at step {result['steps']:,}; the model so far is in {out}. Continue with:")
        typer.echo(f"  {command()} train {q(corpus)} --out {q(out)} --resume")
    else:
        typer.echo(
            f"{result['steps']:,} steps in {result['seconds'] / 60:.1f} minutes; the model is in {out}, "
            f"with the weights of step {result['taken']:,}. Next:"
        )
        ask = {
            "text": f'predict {q(out)} --text "… [MASK] …"',
            "interactions": f"recommend {q(out)} {q(corpus)} --user USER",
            "sequences": f'predict {q(out)} NAME… "[MASK]"',
        }
        typer.echo(f"  {command()} evaluate {q(out)} {q(corpus)}\n  {command()} {ask[result['learnt from']]}")


def train_folder(
    corpus_folder: Path,
    out: Path,
    preset: str | None,
    resume: bool,
    overwrite: bool,
    options: dict[str, Any],
    from_model: Path | None = None,
) -> dict[str, Any]:
    """Train on a corpus folder into a model folder. The run folder beside it is enough to resume."""
    from superbloom.api import Superbloom
    from superbloom.corpus import Corpus
    from superbloom.storage import check_replaceable, only_writer
    from superbloom.training.run_folder import SETTINGS_FILE, RunFolder, RunSettings

    if resume and overwrite:
        raise InputError("--resume continues a run, --overwrite starts over; give one of them")
    out = out.resolve()
    path = out.with_name(out.name + ".run")
    corpus = Corpus.open(corpus_folder)
    base = None if from_model is None else str(from_model.resolve())
    settings = RunSettings(preset, base, *split_options(options))
    with only_writer(out, "model", overwrite=True):  # the lock first; what may be replaced depends on the run
        if resume and (path / SETTINGS_FILE).is_file():
            settings = _resumed(RunSettings.read(path), settings, corpus)
        run = RunFolder(path, settings, overwrite)
        may_replace = overwrite or (resume and run.is_begun())
        if not resume:
            run.check_new()  # before the model: an interrupted run has left one, and --resume is what to type
        check_replaceable(out, "model", may_replace)
        superbloom = Superbloom(settings.preset, **settings.model)
        superbloom.fit(corpus, from_model=settings.from_model, run=run, resume=resume, **settings.train)
        superbloom.save_pretrained(out, overwrite=may_replace)
        if not superbloom.training["interrupted"]:
            run.mark_finished()
    return {
        "model": str(out),
        "run": str(path),
        "behind": _behind(superbloom, corpus, settings.train),
        "parameters": superbloom.model.network.num_parameters(),
        **{name: superbloom.training[name] for name in ("steps", "taken", "seconds", "interrupted")},
        "learnt from": "text" if corpus.vocab.is_text else "interactions" if corpus.is_ordered else "sequences",
        "history": superbloom.metrics["history"],
    }


def _behind(superbloom: Superbloom, corpus: Corpus, options: dict[str, Any]) -> str | None:
    """A line if counting has a higher recall on validation rows; None if it has not, or if memory is too small for it.

    It counts in memory, so it is left out where pairs are counted elsewhere.
    """
    from superbloom.evaluate import comparison, counting_on_validation

    history, config = superbloom.metrics["history"], superbloom.training["config"]
    in_memory = options.get("count_engine", TrainConfig.count_engine) == TrainConfig.count_engine
    if not history or not is_main_process() or config["remember"] == "none" or not in_memory:
        return None
    model = superbloom.model
    other = counting_on_validation(corpus, model.config.seq_len, config["valid_rows"], model.leaves_out_context)
    own = {entry["step"]: entry["recall_at_10"] for entry in history}.get(superbloom.training["taken"])
    own = history[-1]["recall_at_10"] if own is None else own
    return None if other is None or own >= other else f"on validation rows {comparison(own, 'counting', other)}"


def _resumed(stored: RunSettings, given: RunSettings, corpus: Corpus) -> RunSettings:
    """The settings of an interrupted run with the training options given now; InputError if the model differs."""
    from superbloom.api import Superbloom
    from superbloom.training.checkpoints import differences

    if given.from_model not in (None, stored.from_model):
        raise InputError(f"the run began with from_model={stored.from_model}; leave --from-model out with --resume")
    began = Superbloom(stored.preset, **stored.model).config_for(corpus)
    now = Superbloom(given.preset or stored.preset, **stored.model | given.model).config_for(corpus)
    if changed := differences(asdict(began), asdict(now)):
        raise InputError(f"the run began with {changed}; leave these options out with --resume, or train without it")
    return stored.with_training(given.train)
