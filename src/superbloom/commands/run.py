"""What the commands train, evaluate, predict, recommend, extend and inspect do, as functions of folders."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from superbloom.answers import Prediction
from superbloom.api import Superbloom
from superbloom.commands.ask import allowed
from superbloom.config import split_options
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.evaluate import evaluate as measure
from superbloom.evaluate import plot_deciles
from superbloom.hashing import room_for_more
from superbloom.model import Model
from superbloom.predict import Predictor, facts_of
from superbloom.predict.recommend import Histories
from superbloom.predict.recommend import recommend as recommend_to
from superbloom.prepare.files import open_lines
from superbloom.progress import counting
from superbloom.runtime import main_process
from superbloom.storage import MANIFESTS, only_writer, read_folder, read_json, write_atomically
from superbloom.store import load
from superbloom.training.logs import LOG, PICTURES

RUN_FILE = "run.json"
RUN_PARTS = (LOG, PICTURES)
PLACE = ("devices", "strategy", "workers")
FORMULA = r"\A[=+\-@\t\r\n\x00]"  # how a cell begins that a spreadsheet may run


def train(
    corpus_folder: Path,
    out: Path,
    preset: str | None,
    resume: bool,
    overwrite: bool,
    options: dict[str, Any],
    from_model: Path | None = None,
) -> dict[str, Any]:
    """Train on a corpus folder into a model folder; interrupted, the run folder beside it is enough to go on."""
    if resume and overwrite:
        raise InputError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    out = out.resolve()
    run = out.with_name(out.name + ".run")
    corpus = Corpus.open(corpus_folder)
    base = None if from_model is None else str(from_model.resolve())
    settings: dict[str, Any] = {"preset": preset, "from_model": base}
    settings["model"], settings["train"] = split_options(options)
    with only_writer(out, "model"):
        if resume and (run / RUN_FILE).is_file():
            settings = _resumed(run / RUN_FILE, settings, corpus)
        if not resume:
            _check_clearable(run, overwrite)
        superbloom = Superbloom(settings["preset"], **settings["model"])
        # How many processes there are is no part of the run.
        kept = {name: value for name, value in settings["train"].items() if name not in PLACE}

        def write(**more: Any) -> None:
            write_atomically(run / RUN_FILE, json.dumps(settings | {"train": kept, **more}, indent=2).encode())

        def begin() -> None:
            if not resume:
                _clear(run)
            write()

        superbloom.fit(
            corpus, from_model=settings["from_model"], run=run, resume=resume, begin=begin, **settings["train"]
        )
        superbloom.save_pretrained(out)
        if main_process() and not superbloom.training["interrupted"]:
            write(finished=True)
    result: dict[str, Any] = {
        "model": str(out),
        "run": str(run),
        "parameters": superbloom.model.network.num_parameters(),
        **{name: superbloom.training[name] for name in ("steps", "taken", "seconds", "interrupted")},
        "learnt from": "text" if corpus.vocab.is_text else "interactions" if corpus.is_ordered else "sequences",
        "history": superbloom.metrics["history"],
    }
    return result


def _check_clearable(run: Path, overwrite: bool) -> None:
    """Raise InputError if a new run in this folder would lose what it holds."""
    from superbloom.training.checkpoints import checkpoints

    ours = {RUN_FILE, *RUN_PARTS, *(file.name for file in checkpoints(run))}
    strangers = {file.name for file in run.glob("*") if not file.name.startswith(".")} - ours
    if strangers:
        raise InputError(f"{run} also holds {min(strangers)!r}, no part of a run; move it away or choose another --out")
    finished = (run / RUN_FILE).is_file() and read_json(run / RUN_FILE).get("finished")
    if checkpoints(run) and not overwrite and not finished and main_process():
        raise InputError(f"{run} holds an interrupted run; --resume goes on with it, --overwrite starts anew")


def _clear(run: Path) -> None:
    """Remove an earlier run: its checkpoints first, so that half of it is not taken for a run."""
    from superbloom.training.checkpoints import checkpoints

    for part in (*checkpoints(run), *(run / name for name in (*RUN_PARTS, RUN_FILE))):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def _resumed(path: Path, asked: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """The settings of the interrupted run, with the training options given now on top."""
    from superbloom.training.checkpoints import differences

    stored = {"preset": None, "from_model": None} | read_json(path)
    kinds = {"model": dict, "train": dict, "preset": str | None, "from_model": str | None}
    # subtle: what we wrote is a whole path; another name would be looked for on the hub
    named = isinstance(stored["from_model"], str) and not Path(stored["from_model"]).is_absolute()
    if named or not all(isinstance(stored.get(name), kind) for name, kind in kinds.items()):
        raise InputError(f"{path} was not written by superbloom, or is damaged; train without --resume")
    if asked["from_model"] not in (None, stored["from_model"]):
        raise InputError(f"the run began with from_model={stored['from_model']}; leave --from-model out with --resume")
    began, now = (
        asdict(Superbloom(preset, **model).config_for(corpus))
        for preset, model in (
            (stored["preset"], stored["model"]),
            (asked["preset"] or stored["preset"], stored["model"] | asked["model"]),
        )
    )
    changed = differences(began, now)
    if changed:
        raise InputError(f"the run began with {changed}; leave these options out with --resume, or train anew")
    length = {"steps", "minutes"}
    kept = {
        name: value for name, value in stored["train"].items() if not (name in length and length & set(asked["train"]))
    }
    return stored | {"train": kept | asked["train"], "finished": False}


def predict(
    model_folder: Path,
    context: list[str] | str,
    k: int,
    *,
    precision: str,
    prior: bool,
    allow_file: Path | None,
    combine: str,
    allow: list[str],
    **options: Any,
) -> list[list[Prediction]]:
    """The answers to one query, each option as it is typed."""
    predictor = Predictor(load(model_folder).model, precision=precision, prior=prior)
    only = allowed(allow, allow_file)
    weights = _weights(combine) if "," in combine else combine
    return predictor.predict(context, k, combine=weights, allow=only, **options)


def _weights(combine: str) -> list[float]:
    try:
        return [float(weight) for weight in combine.split(",")]
    except ValueError:
        raise InputError(f"combine={combine!r} given; numbers with commas between them are weights: 0.7,0.3") from None


def evaluate(
    model_folder: Path, corpus_folder: Path, out: Path | None, *, precision: str, prior: bool, **options: Any
) -> dict[str, Any]:
    """The figures of a model on a corpus; with `out`, also as JSON and a plot there."""
    if out is not None and (out.is_file() or any((out / manifest).exists() for manifest in MANIFESTS.values())):
        raise InputError(f"{out} is a file, a corpus or a model folder; choose another --out for the report")
    predictor = Predictor(load(model_folder).model, precision=precision, prior=prior)
    corpus = Corpus.open(corpus_folder).under(predictor.model.vocab)
    rows = len(corpus.rows(options["split"]))
    with counting("evaluating", options["draws"] or min(rows, options["rows"] or rows)) as progress:
        figures = measure(predictor, corpus, progress=progress, **options)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "metrics.json", json.dumps(figures, indent=2).encode())
        write_atomically(out / "deciles.png", plot_deciles(figures))
    return figures


def recommend(
    model_folder: Path,
    corpus_folder: Path,
    users: list[str],
    users_file: Path | None,
    out: Path | None,
    titles_file: Path | None = None,
    *,
    safe_csv: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Recommendations for users of a corpus, all unless some are given; with `out`, written there as CSV or Parquet.

    titles_file has lines of an item, a tab and its title: a last column, empty where there is none. safe_csv: see
    _without_formulas.
    """
    if safe_csv and (out is None or out.suffix != ".csv"):
        given = "no --out" if out is None else f"--out {out}"
        raise InputError(f"--safe-csv with {given} given; it goes with an --out that ends in .csv")
    if out is not None:
        _check_table(out)
    titles = None if titles_file is None else _titles(titles_file)
    predictor = Predictor(load(model_folder).model)
    corpus = Corpus.open(corpus_folder)
    if users_file is not None:
        users = users + [user for user in open_lines(users_file) if user.strip()]
    strict, chosen = options.pop("strict"), users if users or users_file is not None else None
    histories = Histories.of_users(corpus, predictor.model.vocab, chosen, strict)
    with counting("recommending", len(histories.who)) as progress:
        columns = recommend_to(predictor, histories, progress=progress, **options)
    if titles is not None:
        columns["title"] = [titles.get(item, "") for item in columns["item"]]
    if out is not None:
        table = pa.table(columns)
        _write_table(_without_formulas(table) if safe_csv else table, out)
    return columns


def _titles(file: Path) -> dict[str, str]:
    """Titles by item; what follows a second tab is left out."""
    titles = {}
    for number, line in enumerate(open_lines(file), 1):
        item, tab, rest = line.partition("\t")
        if line and not tab:
            raise InputError(f"line {number:,} of {file} is {line!r:.80}; give an item, a tab and its title")
        titles[item] = rest.split("\t")[0]
    return titles


def _check_table(out: Path) -> None:
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out} given; a file that ends in .csv or .parquet is allowed")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out} is a folder, or lies in none; choose a file in a folder that is there")


def _without_formulas(table: pa.Table) -> pa.Table:
    """The table with an apostrophe before text that a spreadsheet would run as a formula (OWASP: CSV injection).

    >>> _without_formulas(pa.table({"item": ["=1+1", "a=b"], "score": [-1.0, 2.0]})).to_pydict()
    {'item': ["'=1+1", 'a=b'], 'score': [-1.0, 2.0]}
    """
    marked = (
        pc.replace_substring_regex(column, FORMULA, r"'\0") if pa.types.is_string(column.type) else column
        for column in table.columns
    )
    return pa.table(list(marked), names=table.column_names)


def _write_table(table: pa.Table, out: Path) -> None:
    sink = io.BytesIO()
    if out.suffix == ".csv":
        pyarrow.csv.write_csv(table, sink)
    else:
        pyarrow.parquet.write_table(table, sink)
    write_atomically(out, sink.getvalue())


def extend(model_folder: Path, names_file: Path, out: Path, like_file: Path | None, reserve: float) -> dict[str, Any]:
    """A model folder with more names: those of a text file, one a line; like_file: a name, a tab, known names, …."""
    names = [name for name in open_lines(names_file) if name.strip()]
    like = {}
    if like_file is not None:
        for line in filter(None, open_lines(like_file)):
            name, *others = line.split("\t")
            like[name] = others
    with only_writer(out, "model"):
        superbloom = Superbloom.from_pretrained(model_folder)
        vocab = superbloom.model.vocab
        before, known = len(vocab), sum(name in vocab for name in dict.fromkeys(names))
        superbloom.extend(names, like=like, reserve=reserve)
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


def inspect(folder: Path, names: list[str]) -> dict[str, Any]:
    """What a corpus or model folder holds, and what it knows of some names."""
    kind = next((kind for kind, manifest in MANIFESTS.items() if (folder / manifest).is_file()), "corpus")
    manifest = read_folder(folder, kind, verify=False)  # what is opened below is verified there
    if kind == "corpus":
        corpus = Corpus.open(folder)
        if not names:
            return {name: manifest[name] for name in ("format", "version", "counts", "info", "split")}
        return {name: _name_facts(corpus, name) for name in names}
    model, training, metrics, _ = load(folder)
    if names:
        return {name: _digest_facts(model, name) for name in names}
    facts = {name: manifest[name] for name in ("format", "version", "model")}
    measured = metrics.get("test")
    recall = measured.get("recall", {}) if isinstance(measured, dict) else {}
    return facts | {
        "parameters": model.network.num_parameters(),
        "tokens": model.config.num_tokens,
        "steps": training.get("steps"),
        **({"test recall": recall} if recall else {}),
    }


def _name_facts(corpus: Corpus, name: str) -> dict[str, Any]:
    id_ = corpus.vocab.id(name)
    return {"id": id_, "count": corpus.vocab.count(id_)}


def _digest_facts(model: Model, name: str) -> dict[str, Any]:
    """The id, its tokens, and the most frequent of those it shares each bucket with."""
    facts = facts_of(model, name)
    mates = {f"bucket {b.bucket} of hash {b.hash} is shared with": b.mates for b in facts.buckets}
    return {"id": facts.id, "count": facts.count, "digest": facts.digest, **mates}
