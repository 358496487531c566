"""`superbloom extend`: add names to a model without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import command, print_json, q
from superbloom.commands.options import Json, ModelFolder, Out, given, options_of
from superbloom.config import ExtendOptions, make


@options_of(ExtendOptions)
def extend(
    model: ModelFolder,
    names: Annotated[Path, typer.Argument(metavar="NAMES", help="A text file, one new name per line; - is stdin.")],
    out: Out,
    like: Annotated[
        Path | None,
        typer.Option(help="Lines of a new name, a tab, and known names it is like, with tabs between them."),
    ] = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """Add names to a model without training: old digests stay, each new name gets one that is its own."""
    result = _extend(model, names, out, like, make(ExtendOptions, given(ExtendOptions, options)).reserve)
    if json_:
        print_json(result)
        return
    again = f", {result['known before']:,} were known" if result["known before"] else ""
    typer.echo(
        f"{result['new']:,} new names{again}; {result['names']:,} in all, room for {result['room left']:,} more."
    )
    typer.echo(f"The model is in {out}; train it on a corpus that has them:")
    typer.echo(f"  {command()} train CORPUS --from-model {q(out)} --out {q(f'{out}-trained')}")


def _extend(folder: Path, names_file: Path, out: Path, like_file: Path | None, reserve: float) -> dict[str, Any]:
    from superbloom.api import Superbloom
    from superbloom.hashing import room_for_more
    from superbloom.prepare.files import open_lines
    from superbloom.storage import only_writer

    names = [name for name in open_lines(names_file) if name.strip()]
    lines = [] if like_file is None else [line.split("\t") for line in open_lines(like_file) if line]
    with only_writer(out, "model"):
        superbloom = Superbloom.from_pretrained(folder)
        vocab = superbloom.model.vocab
        before, known = len(vocab), sum(name in vocab for name in dict.fromkeys(names))
        superbloom.extend(names, like={name: others for name, *others in lines}, reserve=reserve)
        superbloom.save_pretrained(out)
    bloom = superbloom.model.bloom
    return {
        "model": str(out),
        "names": bloom.num_ids,
        "new": bloom.num_ids - before,
        "known before": known,
        "largest bucket": bloom.largest_bucket,
        "room left": room_for_more(bloom, reserve)[1],
    }
