"""`superbloom train`: train a model on a corpus folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import command, print_json, q
from superbloom.commands.options import CorpusFolder, Json, Out, options_of
from superbloom.config import PRESET_NAMES, ModelConfig, TrainConfig
from superbloom.runtime import main_process


@options_of(ModelConfig, TrainConfig, panels=True)
def train(
    corpus: CorpusFolder,
    out: Out,
    preset: Annotated[str | None, typer.Option(help=f"Start from one of {', '.join(PRESET_NAMES)}.")] = None,
    from_model: Annotated[
        Path | None, typer.Option(help="Begin with this model; names it does not know are added to it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run of the same --out, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew over an interrupted run.")] = False,
    json_: Json = False,
    **options: Any,
) -> None:
    """Train a model, by default for five minutes. Checkpoints and log are kept beside it, in OUT.run."""
    from superbloom.commands.run import train as run

    chosen = {name: value for name, value in options.items() if value is not None}
    result = run(corpus, out, preset, resume, overwrite, chosen, from_model)
    if not main_process():
        return
    if json_:
        print_json(result)
    elif result["interrupted"]:
        typer.echo(f"stopped at step {result['steps']:,}; the model so far is in {out}. Go on with:")
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
