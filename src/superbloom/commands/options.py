"""The command line's options, made from the dataclasses of config/, and the arguments that commands share.

A field with a help text becomes an option. An option that is not given arrives as None; `given` leaves it out, so that
the default of the dataclass holds.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from superbloom.config import PRESETS, HeadOptions, WriteOptions, environment_name, make
from superbloom.config.option import choices_of, default_of, kind_of
from superbloom.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
CorpusFolder = Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus folder, made by `prepare`.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="SUPERBLOOM_API_KEY", show_envvar=True, help="The key of the server.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="entities: rows of names, such as the links of a page (the defaults). sequence: what users chose, in "
        f"order. text: natural language. Or a model of the paper: {', '.join(PRESETS)}."
    ),
]
Server = Annotated[str | None, typer.Option(help="Ask the server at this address, instead of a folder.")]
FolderOrName = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="A model folder; left out with --server.", show_default=False)
]
ADVANCED = ("Advanced: training", "Advanced: the model")  # where --help shows options that few people need
BYTES_PER_GB = 1e9
MAX_GIGABYTES = 1e6  # larger numbers are mistakes

Command = Callable[..., None]


def options_of(
    *kinds: type, leave_out: Sequence[str] = (), panels: Sequence[str] = (), environment: bool = False
) -> Callable[[Command], Command]:
    """Give a command an option for every field of these dataclasses that has a help text.

    panels: in --help, where the options of each dataclass stand that are not common; common ones stand first.
    environment: also take each option from its environment variable.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for kind, panel in zip_longest(kinds, panels):
            hints = get_type_hints(kind)
            for spec in fields(kind):
                if "help" in spec.metadata and spec.name not in leave_out:
                    place = None if spec.metadata["common"] else panel
                    annotation = _annotation(spec, hints[spec.name], place, environment)
                    parameters.append(
                        inspect.Parameter(
                            spec.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                        )
                    )
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def given(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a dataclass that a user gave, in the units of the dataclass."""
    found = {}
    for spec in fields(kind):
        value = options.get(spec.name)
        if value is not None:
            found[spec.name] = _bytes(spec.name, value) if spec.metadata.get("gigabytes") else value
    return found


def folder_and_names(model: str | None, names: list[str] | None, server: str | None) -> tuple[Path | None, list[str]]:
    """The model folder, None with a server, and the names. With a server, the first argument is a name as well."""
    if server is not None:
        if model is not None and Path(model).is_dir():
            raise InputError(f"the folder {model} and --server {server} given; give one of them, then the names")
        return None, [*([] if model is None else [model]), *(names or [])]
    if model is None:
        raise InputError("give a model folder, or --server with the address of one that `superbloom serve` made")
    return Path(model), names or []


def check_head_for_server(head: dict[str, Any]) -> None:
    """Refuse options of the output layer that only the server can choose. head: those that were given."""
    if any(getattr(HeadOptions, name) != value for name, value in head.items()):
        raise InputError(
            "--precision, --prior and --network-only are the server's to choose; leave them out with --server"
        )


def may_overwrite(options: dict[str, Any]) -> bool:
    """Whether --overwrite was given."""
    return make(WriteOptions, given(WriteOptions, options)).overwrite


def _bytes(name: str, gigabytes: float) -> int:
    if not 0 < gigabytes < MAX_GIGABYTES:
        raise InputError(f"--{name} {gigabytes:g} given; a number of GB is allowed, e.g. --{name} 2")
    return int(gigabytes * BYTES_PER_GB)


def _annotation(spec: Field[Any], hint: Any, panel: str | None, environment: bool) -> Any:
    kind, _ = kind_of(hint)
    flag, choices = spec.metadata["flag"], choices_of(kind)
    type_ = _command_line_type(spec, kind)
    repeated = " May be repeated." if type_ == list[str] else ""
    option = typer.Option(
        *([flag] if flag else []),
        help=spec.metadata["help"] + repeated + _values_text(spec, choices),
        metavar="<word>" if choices else None,
        rich_help_panel=panel,
        show_default=False,
        envvar=environment_name(spec.name) if environment else None,
        show_envvar=False,  # in 80 columns the names would be cut; the help of the command states the rule
    )
    return Annotated[type_ | None, option]


def _values_text(spec: Field[Any], choices: Sequence[str]) -> str:
    """The values that are allowed, if they are words, and the default."""
    default, shown = default_of(spec), spec.metadata["shown_default"]
    if spec.metadata["gigabytes"]:
        default = default / BYTES_PER_GB
    is_switch = default is False and spec.metadata["flag"] is not None
    values = [" | ".join(choices)] if choices else []
    if shown is not None or not (
        default is None or default == () or is_switch or "(default: " in spec.metadata["help"]
    ):
        values.append(f"default: {default if shown is None else shown}")
    return f" ({'; '.join(values)})" if values else ""


def _command_line_type(spec: Field[Any], kind: Any) -> Any:
    """The type as Typer reads it. Choices are text: the dataclass refuses others in one line."""
    if spec.metadata["gigabytes"]:
        return float
    if kind in (int, float, bool):
        return kind
    if get_origin(kind) in (tuple, Iterable):
        return list[str]
    return Path if any(get_origin(part) is os.PathLike for part in get_args(kind)) else str
