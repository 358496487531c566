"""`superbloom evaluate`: recall of a model on held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import print_json
from superbloom.commands.options import CorpusFolder, Json, ModelFolder, given, may_overwrite, options_of
from superbloom.config import EvaluateOptions, HeadOptions, WriteOptions, make
from superbloom.errors import InputError

REPORT_FILES = ("metrics.json", "deciles.png", "calibration.png")


@options_of(EvaluateOptions, HeadOptions, WriteOptions)
def evaluate(
    model: ModelFolder,
    corpus: CorpusFolder,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for metrics.json and plots of recall and calibration.")
    ] = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """recall@1/10/20 on held-out rows (Sec. 3.1), beside network and memory alone, and answers that only count."""
    if out is not None:
        check_report_folder(out, may_overwrite(options))
    figures = _measure(model, corpus, make(EvaluateOptions, given(EvaluateOptions, options)), options)
    if out is not None:
        _write(figures, out)
    if json_:
        print_json(figures)
        return
    from rich.console import Console

    from superbloom.evaluate import recall_table, verdict

    console = Console()
    console.print(recall_table(figures))
    token = figures["token_recall_at_1"]["value"]
    console.print(
        f"NDCG@10 {figures['ndcg']['10']:.3f}, MRR@10 {figures['mrr']['10']:.3f}; token recall@1 {token:.3f}; "
        f"{figures['certified']:.1%} of the answers certified"
    )
    console.print(
        f"ghosts {figures['ghosts']:.1%} of ten answers; calibration error {figures['calibration']['error']:.4f}; "
        f"negative log-likelihood {figures['negative log-likelihood']:.3f}"
    )
    if unknown := figures.get("unknown"):
        console.print(
            f"{unknown['names']:,} of the corpus's {unknown['of']:,} names are not known to this model: "
            f"{unknown['hidden']:,} of {figures['rows']:,} hidden elements count as missed",
            markup=False,
            highlight=False,
        )
    if (found := verdict(figures)) is not None:
        console.print(found, markup=False, highlight=False)
    if out is not None:
        console.print(f"wrote metrics.json, deciles.png and calibration.png to {out}", markup=False)


def _measure(model: Path, corpus: Path, chosen: EvaluateOptions, options: dict[str, Any]) -> dict[str, Any]:
    head = vars(make(HeadOptions, given(HeadOptions, options)))  # refused before anything is loaded
    from superbloom.corpus import Corpus
    from superbloom.evaluate import evaluate
    from superbloom.predict import Predictor
    from superbloom.progress import counting
    from superbloom.store import load

    predictor = Predictor(load(model).model, **head)
    rows = Corpus.open(corpus)
    available = rows.num_asked(chosen.split)
    with counting("evaluating", chosen.draws or min(available, chosen.rows or available)) as progress:
        return evaluate(predictor, rows, progress=progress, **vars(chosen))


def _write(figures: dict[str, Any], out: Path) -> None:
    from superbloom.evaluate import plot_calibration, plot_deciles
    from superbloom.storage import write_atomically

    out.mkdir(parents=True, exist_ok=True)
    contents = (json.dumps(figures, indent=2).encode(), plot_deciles(figures), plot_calibration(figures))
    for name, content in zip(REPORT_FILES, contents, strict=True):
        write_atomically(out / name, content)


def check_report_folder(out: Path, overwrite: bool) -> None:
    """Raise InputError if a report would be written into a file, a corpus or a model folder, or replace another."""
    from superbloom.storage import MANIFESTS, already_there

    if out.is_file() or any((out / manifest).exists() for manifest in MANIFESTS.values()):
        raise InputError(f"{out} is a file, a corpus or a model folder; choose another --out for the report")
    if not overwrite and any((out / name).exists() for name in REPORT_FILES):
        raise already_there(out, "holds a report")
