"""`superbloom demo`: train on the built-in Wikipedia links for five minutes, compare, and answer queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superbloom.commands.console import command
from superbloom.commands.options import may_overwrite, options_of
from superbloom.config import WriteOptions, train_config
from superbloom.config.training import DEFAULT_MINUTES
from superbloom.special import MASK_TEXT

if TYPE_CHECKING:
    from superbloom.answers import Prediction

# Queries of Appendix E. The demo skips those with entities that the built-in corpus lacks.
QUERIES = (
    ("Copenhagen",),
    ("Copenhagen", "Paris"),
    ("Miles Davis",),
    ("Tunisia", "Tunis", "Thailand"),
)


@options_of(WriteOptions)
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for model and corpus.")] = Path("superbloom-demo"),
    minutes: Annotated[float, typer.Option(help="How long to train.")] = DEFAULT_MINUTES,
    **options: Any,
) -> None:
    """Train on built-in Wikipedia links for five minutes, compare with yardsticks, answer queries."""
    from rich.console import Console

    from superbloom.api import Superbloom
    from superbloom.evaluate import recall_table
    from superbloom.prepare.bundled import bundled_corpus
    from superbloom.storage import only_writer

    console = Console()
    model_folder, corpus_folder = out / "model", out / "corpus"
    train_config(minutes=minutes)  # refuses a time that cannot be, before anything is written
    overwrite = may_overwrite(options)
    with only_writer(model_folder, "model", overwrite), only_writer(corpus_folder, "corpus", overwrite):
        corpus = bundled_corpus()
        corpus.save(corpus_folder)
        counts = corpus.counts()
        console.print(
            f"Wikipedia of 2006: {counts['rows']:,} pages, {counts['ids']:,} links to {counts['names']:,} entities.\n"
            f"Training for {minutes:g} minutes; Ctrl-C stops training earlier and shows the results.\n"
        )
        model = Superbloom().fit(corpus, minutes=minutes)
        config = model.model.config
        console.print(
            f"{model.training['steps']:,} steps. Each entity is {config.num_hashes} of {config.num_tokens:,} tokens; "
            f"{model.model.network.num_parameters():,} parameters.\n"
        )
        console.print(recall_table(model.evaluate(corpus)))
        model.save_pretrained(model_folder)
        for query in QUERIES:
            if all(name in corpus.vocab for name in query):
                (found,) = model.predictor.predict([*query, MASK_TEXT], k=10)
                _print_answer(query, found)
    report, better = out / "report", out / "better"
    typer.echo(f"\nThe model is in {model_folder}, its corpus in {corpus_folder}. Next:")
    typer.echo(f'  {command()} predict {model_folder} Jazz Piano "{MASK_TEXT}"')
    typer.echo(f"  {command()} inspect {model_folder} Denmark")
    typer.echo(f"  {command()} evaluate {model_folder} {corpus_folder} --out {report}")
    typer.echo(f"  {command()} train {corpus_folder} --out {better} --minutes 30")


def _print_answer(query: tuple[str, ...], found: list[Prediction]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    proof = "certified: no other entity is more likely under this model" if found[0].certified else "not certified"
    console.print(Text(f"\n{'  '.join(query)}  {MASK_TEXT}", style="bold"))
    console.print(Text("  " + ", ".join(prediction.name for prediction in found)))
    console.print(Text(f"  ({proof})", style="dim"))
