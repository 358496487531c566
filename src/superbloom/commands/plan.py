"""`superbloom plan`: sizes for a catalogue and a memory, before anything is trained."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from superbloom.commands.console import command, print_json, q
from superbloom.commands.options import ADVANCED, Json, Preset, options_of
from superbloom.config import ModelConfig, TrainConfig, preset_options, split_options, train_config


@options_of(TrainConfig, ModelConfig, panels=ADVANCED)
def plan(
    ids: Annotated[int, typer.Option(help="How many names the catalogue has.")],
    memory: Annotated[
        str | None, typer.Option(help="Memory to use: 16GB, 16GiB or bytes. (default: what this machine has)")
    ] = None,
    preset: Preset = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """Choose alpha, m and d for a catalogue, a time (--minutes) and a memory, and show what they cost.

    `train` chooses the same.
    """
    from superbloom.errors import InputError
    from superbloom.training.choice import CHOSEN, choose
    from superbloom.training.limits import machine_memory
    from superbloom.training.plan import document, measure, table
    from superbloom.training.units import in_bytes

    shape, training = ({}, {}) if preset is None else preset_options(preset)
    chosen = {name: value for name, value in options.items() if value is not None}
    more_shape, more_training = split_options(chosen)
    room = machine_memory() if memory is None else in_bytes(memory)
    if ids < 2:
        raise InputError(f"--ids {ids} given; 2 or more is allowed")
    if room is None:
        raise InputError("the system does not say how much memory it has; give --memory, e.g. 16GB")
    found = choose(ids, room, shape | more_shape, train_config(**training | more_training), must_fit=True)
    rates = measure()
    if json_:
        print_json(document(found, rates))
        return
    from rich.console import Console

    Console().print(table(found, rates))
    sizes = {name: getattr(found.config, name) for name in CHOSEN}
    words = [f"--preset {q(preset)}"] if preset is not None else []
    words += [_written(name, value) for name, value in (sizes | chosen).items()]
    typer.echo(f"Next:\n  {command()} train CORPUS --out MODEL {' '.join(words)}")
    typer.echo(f"  {command()} serve MODEL --precision int8")


def _written(name: str, value: Any) -> str:
    """An option as it is typed."""
    flag = name.replace("_", "-")
    return f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {q(str(value))}"
