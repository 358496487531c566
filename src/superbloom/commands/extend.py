"""`superbloom extend`: add names to a model without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import command, print_json, q, warnings_as_lines
from superbloom.commands.options import Json, ModelFolder, Out, given, may_overwrite, options_of
from superbloom.config import ExtendOptions, WriteOptions, make
from superbloom.errors import InputError


@options_of(ExtendOptions, WriteOptions)
def extend(
    model: ModelFolder,
    names: Annotated[
        Path | None, typer.Argument(metavar="[NAMES]", help="A text file, one new name per line; - is stdin.")
    ] = None,
    *,
    out: Out,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A newer corpus: its new names, pairs and rows are added. It may have old rows as well."),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Lines of a new name, a tab, and known names it is like, with tabs between them."),
    ] = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """Add names to a model without training: old digests stay, each new name gets one that is its own."""
    if names is None and corpus is None:
        raise InputError("no new names given; give a text file of NAMES, or a newer log: --corpus CORPUS")
    chosen = make(ExtendOptions, given(ExtendOptions, options))
    if chosen.replace and corpus is None:
        raise InputError("--replace given without a corpus to remember instead; give it: --corpus CORPUS")
    with warnings_as_lines():
        result = _extend(model, names, corpus, out, like, chosen, may_overwrite(options))
    if json_:
        print_json(result)
        return
    again = f", {result['known before']:,} were known" if result["known before"] else ""
    typer.echo(
        f"{result['new']:,} new names{again}; {result['names']:,} in all, room for {result['room left']:,} more."
    )
    if corpus is not None:
        others = ", and of no other corpus" if chosen.replace else " and of what it held before"
        typer.echo(f"The memory holds {result['remembered rows']:,} pieces of rows, of {corpus}{others}.")
    typer.echo(f"The model is in {out}; train it on a corpus that has them:")
    rows = "CORPUS" if corpus is None else q(corpus)
    typer.echo(f"  {command()} train {rows} --from-model {q(out)} --out {q(f'{out}-trained')}")


def _extend(
    folder: Path,
    names_file: Path | None,
    corpus: Path | None,
    out: Path,
    like_file: Path | None,
    chosen: ExtendOptions,
    overwrite: bool,
) -> dict[str, Any]:
    from superbloom.api import Superbloom
    from superbloom.corpus import Corpus
    from superbloom.hashing import room_for_more
    from superbloom.prepare.files import open_lines
    from superbloom.storage import only_writer

    with only_writer(out, "model", overwrite):
        names = [] if names_file is None else [name for name in open_lines(names_file) if name.strip()]
        newer = None if corpus is None else Corpus.open(corpus)
        lines = [] if like_file is None else [line.split("\t") for line in open_lines(like_file) if line]
        alike = {name: others for name, *others in lines}
        superbloom = Superbloom.from_pretrained(folder)
        vocab = superbloom.model.vocab
        before, known = len(vocab), sum(name in vocab for name in dict.fromkeys(names))
        if names:
            superbloom.extend(names, like=alike, reserve=chosen.reserve)
        if newer is not None:
            superbloom.remember(newer, replace=chosen.replace, like=None if names else alike, reserve=chosen.reserve)
        superbloom.save_pretrained(out, overwrite=overwrite)
    bloom = superbloom.model.bloom
    memory = superbloom.model.memory
    return {
        "model": str(out),
        "names": bloom.num_ids,
        "new": bloom.num_ids - before,
        "known before": known,
        "largest bucket": bloom.largest_bucket,
        "room left": room_for_more(bloom, chosen.reserve)[1],
        "remembered rows": 0 if memory is None or memory.rows is None else len(memory.rows.starts) - 1,
    }
