"""`superbloom demo`: train on all links of the built-in Wikipedia, compare, and answer the paper's queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superbloom.commands.console import command, print_wrapped, printable
from superbloom.commands.options import may_overwrite, options_of
from superbloom.config import WriteOptions, train_config
from superbloom.special import MASK_TEXT

if TYPE_CHECKING:
    from superbloom.api import Superbloom
    from superbloom.corpus import Corpus

MINUTES = 4.0
# Queries of Appendix E, as far as the Wikipedia of 2006 has their entities, and two of our own.
QUERIES = (
    ("Copenhagen",),
    ("Copenhagen", "Aarhus"),
    ("Copenhagen", "Paris"),
    ("Copenhagen", "Dynasty"),
    ("Miles Davis",),
    ("Miles Davis", "John Coltrane"),
    ("Tunisia", "Tunis", "Thailand"),
    ("Chess",),
    ("Jazz", "Piano"),
)
ANSWERS = 8


@options_of(WriteOptions)
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for model and corpus.")] = Path("superbloom-demo"),
    minutes: Annotated[float, typer.Option(help="How long to train.")] = MINUTES,
    **options: Any,
) -> None:
    """Train on all links of a Wikipedia for four minutes, compare with yardsticks, answer the paper's queries.

    The catalogue has 259,996 entities.
    """
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
        print_wrapped(
            f"The Wikipedia of 2006: {counts['rows']:,} pages with {counts['ids']:,} links to {counts['names']:,} "
            f"entities. Training takes {minutes:g} minutes; Ctrl-C ends it earlier and shows the results."
        )
        model = Superbloom().fit(corpus, minutes=minutes)
        typer.echo("")
        figures = model.evaluate(corpus)
        console.print(recall_table(figures))
        model.save_pretrained(model_folder)
        _print_answers(model, corpus)
        typer.echo("")
        print_wrapped(_conclusion(model, figures))
    report, better = out / "report", out / "better"
    typer.echo(f"\nThe model is in {model_folder}, its corpus in {corpus_folder}. Next:")
    typer.echo(f"  {command()} predict {model_folder} Jazz Piano --explain")
    typer.echo(f"  {command()} serve {model_folder}")
    typer.echo(f"  {command()} evaluate {model_folder} {corpus_folder} --out {report}")
    typer.echo(f"  {command()} train {corpus_folder} --out {better} --minutes 30")


def _print_answers(model: Superbloom, corpus: Corpus) -> None:
    typer.echo("What belongs to these entities? (The entities themselves are left out.)")
    proven = True
    for query in QUERIES:
        if all(name in corpus.vocab for name in query):
            (found,) = model.predictor.predict([*query, MASK_TEXT], k=ANSWERS, exclude_context=True)
            typer.echo("\n" + ", ".join(query))
            print_wrapped(" · ".join(printable(answer.name) for answer in found), "  ")
            proven &= found[0].certified
    if proven:
        typer.echo("")
        print_wrapped(f"Certified: no other of the {corpus.num_ids:,} entities is more likely under this model.")


def _conclusion(model: Superbloom, figures: dict[str, Any]) -> str:
    """What the demo has shown, by its own figures, in two sentences."""
    from superbloom.evaluate import best_yardstick

    config, yardsticks = model.model.config, figures["yardsticks"]
    best = best_yardstick(yardsticks)
    own, other = figures["recall"]["10"]["value"], yardsticks[best]["10"]["value"]
    return (
        f"This network of {model.model.network.num_parameters():,} parameters reads and predicts {config.num_ids:,} "
        f"entities as {config.num_tokens:,} tokens; it made {model.training['steps']:,} steps. With the links that it "
        f"remembers, it finds {own:.1%} of the hidden entities among ten answers; the best answers that only count "
        f"({best}) find {other:.1%}."
    )
