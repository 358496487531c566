"""Next items on public logs, beside published numbers and RecTools.   python -m benchmarks.recommend --help

    sets      each set with each alpha for so many minutes; whole catalogue ranked, what was seen left out
    popular   the most frequent items of training for everybody, without what was seen: what a model has to beat
    peers     RecTools' BERT4Rec and SASRec on the same events for as long, by the Python of --rectools
    extend    items withheld from training, added later: recall before and after a short continuation
    prepare   ten million synthetic events to a corpus: time and memory, beside RecTools' Dataset.construct
    engines   checksums of the corpora that DuckDB and Spark make of ML-1M
    cluster   the ten million events by DuckDB, and by a Spark master and a worker on this machine: memory, same corpus
    report    tables of what was measured, into docs/recommendation.md and docs/scale.md

ML-1M, Beauty: the last item of each user is asked (recall@10, NDCG@10). Nowplaying: the last click of the test sessions
(recall@20, MRR@20, nothing left out). Book-Crossing: sets without times, whose file has each user's books by ISBN.
They are shuffled, and the last book of each test user is asked; test users are not trained on.

Each cell is a process of its own, so that its peak memory is its own. --split valid asks what validation asks: for
choosing options. Logs lie in --data; what is measured is kept in benchmarks/results/recommend.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.count_engines import Watched, standalone
from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.corpus import SPLITS
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.recall import ranks
from superbloom.prepare.files import open_bytes
from superbloom.prepare.interactions import prepare_interactions
from tools.record import between_marks, keep

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "recommend.json", HERE.parent / "docs" / "recommendation.md"
PARTS = ("sets", "tried", "popular", "peers", "extend", "prepare", "engines", "cluster")
ML1M, BEAUTY = "ml-1m_sequences_by_time.txt.xz", "bert4rec_beauty.txt.xz"
SESSIONS, ASKED = "gcegnn_Nowplaying_train_sessions.txt.xz", "gcegnn_Nowplaying_test_prefix_target.txt.xz"
BOOKS = "BX-Book-Ratings.csv.xz"
MODELS = {"ml-1m": (1, 4), "beauty": (10, 1), "nowplaying": (10,), "book-crossing": (10, 50, 1, 4, 20)}
# What differs from the preset: Beauty has the width of BERT4Rec's authors, books have no order.
CHOSEN: dict[str, dict[str, Any]] = {
    "ml-1m": {},
    "beauty": {"dim": 64, "ffn_dim": 256},
    "nowplaying": {},
    "book-crossing": {"mask_as": "question", "positions": False, "distance": False},
}
# RecTools pads histories to the length and computes logits of padding, too: no longer than most are. With 32 of them
# a step, not its 128, it makes four times as many steps in the time.
PEERS = {
    "ml-1m": {"length": 50, "dim": 128, "batch": 32},
    "beauty": {"length": 20, "dim": 64, "batch": 32},
    "nowplaying": {"length": 20, "dim": 128, "batch": 32},
    "book-crossing": {"length": 50, "dim": 128, "batch": 16},
}
UNFILTERED = ("nowplaying",)  # where what was seen may be answered
WITHHELD = 20  # every so many-th item
CONTINUED = 2.0  # minutes
KS = (1, 10, 20)
EVENTS, USERS, ITEMS = 10_000_000, 500_000, 200_000  # of the synthetic log


def corpus_of(name: str, given: argparse.Namespace) -> Corpus:
    """The corpus of a set, prepared once."""
    folder = given.work / name
    if not folder.exists():
        given.work.mkdir(parents=True, exist_ok=True)
        alone(prepared, name, given.data / "interactions", folder)
    return Corpus.open(folder)


def prepared(name: str, data: Path, folder: Path) -> None:
    if name == "ml-1m":
        prepare_interactions([data / ML1M], folder, format="lines", min_item_count=5)
    elif name == "beauty":
        prepare_interactions([data / BEAUTY], folder, user=0, item=1, min_item_count=1)
    elif name == "nowplaying":
        prepare_interactions([data / SESSIONS], folder, format="sessions", test=data / ASKED)
    else:
        books(data, folder)


def books(data: Path, folder: Path) -> None:
    """Book-Crossing in random order, so that the last book of a user is any of them."""
    with open_bytes(data / BOOKS) as stream:
        header, *ratings = stream.readlines()
    order = np.random.default_rng(0).permutation(len(ratings))
    columns: dict[str, Any] = {"user": "User-ID", "item": "ISBN", "encoding": "latin-1"}
    with tempfile.TemporaryDirectory() as scratch:
        shuffled = Path(scratch) / "ratings.csv"
        shuffled.write_bytes(b"".join([header, *(ratings[number] for number in order)]))
        prepare_interactions([shuffled], folder, **columns, min_item_count=1, min_user_count=1, split="user")


def sets(given: argparse.Namespace, results: dict[str, Any]) -> None:
    kept = results["sets" if given.split == "test" else "tried"]
    for name in given.sets:
        for alpha in given.alphas or MODELS[name]:
            label = ", ".join([f"alpha={alpha}", f"{given.minutes:g} min", *given.options])
            if label in kept.setdefault(name, {}):
                continue
            corpus_of(name, given)
            figures = kept[name][label] = alone(cell, name, alpha, given)
            shown = {k: round(figures["recall"][k]["value"], 4) for k in ("10", "20")}
            shown |= {"NDCG@10": round(figures["ndcg"]["10"], 4), "MRR@20": round(figures["mrr"]["20"], 4)}
            print(name, label, given.split, shown, f"{figures['steps']:,} steps", flush=True)
            keep(RESULTS, results)


def cell(name: str, alpha: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train and ask one model."""
    corpus = corpus_of(name, given)
    options = CHOSEN[name] | dict(option(text) for text in given.options)
    of_model = {field.name for field in fields(ModelConfig)}
    shape = {key: value for key, value in options.items() if key in of_model}
    training = {key: value for key, value in options.items() if key not in of_model}
    superbloom = Superbloom(preset="sequence", **hashes(alpha) | shape)
    cpu = time.process_time()
    superbloom.fit(corpus, minutes=given.minutes, quiet=True, **training)
    peak, cpu, start = peak_gb(), time.process_time() - cpu, time.perf_counter()
    figures = superbloom.evaluate(corpus, yardsticks=False, filter_seen=name not in UNFILTERED, split=given.split)
    return {
        "options": options,
        "names": corpus.num_ids,
        "parameters": superbloom.model.network.num_parameters(),
        "steps": superbloom.training["steps"],
        "taken": superbloom.training["taken"],
        "minutes": superbloom.training["seconds"] / 60,
        "CPU minutes": cpu / 60,
        "training peak GB": peak,
        "peak GB": peak_gb(),
        "ranking minutes": (time.perf_counter() - start) / 60,
        "history": superbloom.metrics["history"],
        "asked": figures["rows"],
        **{metric: figures[metric] for metric in ("recall", "ndcg", "mrr", "coverage", "popularity bias")},
    }


def hashes(alpha: int) -> dict[str, int]:
    return {"num_hashes": 1 if alpha == 1 else 2, "alpha": alpha}


def option(text: str) -> tuple[str, Any]:
    """dim=64 or mask_as=next as name and value."""
    name, value = text.split("=", 1)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def popular(given: argparse.Namespace, results: dict[str, Any]) -> None:
    for name in given.sets:
        rank = popular_ranks(corpus_of(name, given), filter_seen=name not in UNFILTERED)
        results["popular"][name] = {
            "recall": {k: float((rank < k).mean()) for k in KS},
            "ndcg": {k: float(np.where(rank < k, 1 / np.log2(2 + rank), 0).mean()) for k in KS},
            "mrr": {k: float(np.where(rank < k, 1 / (1 + rank), 0).mean()) for k in KS},
        }
        print(name, "popular", results["popular"][name], flush=True)
    keep(RESULTS, results)


def popular_ranks(corpus: Corpus, filter_seen: bool) -> np.ndarray:
    """The rank of what each test row asks, from 0, among the items by falling frequency in training."""
    *_, part = parts_of(corpus)
    counts = np.bincount(corpus.ids[part == "train"], minlength=corpus.num_ids)
    place = np.empty(corpus.num_ids, dtype=np.int64)
    place[np.argsort(-counts, kind="stable")] = np.arange(corpus.num_ids)
    ranks = []
    for row in corpus.rows("test"):
        *history, target = corpus.row(row)[: corpus.cuts["test"][row] + 1].tolist()
        before = sum(place[seen] < place[target] for seen in set(history)) if filter_seen else 0
        ranks.append(place[target] - before)
    return np.array(ranks)


def peers(given: argparse.Namespace, results: dict[str, Any]) -> None:
    if given.rectools is None:
        sys.exit("--rectools is missing; give the Python of an environment made as benchmarks/peers/README.md says")
    for name in given.sets:
        for model in given.peers:
            label = ", ".join([model, f"{given.minutes:g} min", *given.options])
            if label in results["peers"].setdefault(name, {}):
                continue
            settings = PEERS[name] | dict(option(text) for text in given.options)
            arguments = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
            arguments += [] if name in UNFILTERED else ["--filter-seen"]
            events = given.work / f"{name}.csv"
            if not events.exists():
                export(corpus_of(name, given), events)
            script = [given.rectools, HERE / "peers" / "rectools_fit.py", events, "--model", model]
            found = subprocess.run(
                [*map(str, script), "--minutes", str(given.minutes), *arguments], capture_output=True, text=True
            )
            figures = last_line(found)
            results["peers"][name][label] = figures
            print(name, label, {key: value for key, value in figures.items() if key != "settings"}, flush=True)
            keep(RESULTS, results)


def last_line(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a script printed as JSON, or the line it ended in."""
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]}
    return json.loads(found.stdout.strip().splitlines()[-1])


def export(corpus: Corpus, path: Path) -> None:
    """The events of a corpus with what each is for, as benchmarks/peers/rectools_fit.py reads them."""
    row, at, part = parts_of(corpus)
    table = pa.table({"user": row, "item": corpus.ids, "at": at, "part": pa.array(part, pa.string())})
    pyarrow.csv.write_csv(table.filter(pa.array(part != "")), path)


def parts_of(corpus: Corpus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each event its row, its place in it, and what it is for: train, history, target or nothing."""
    row = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))
    at = np.arange(len(corpus.ids)) - corpus.offsets[row]
    asked = np.isin(row, corpus.rows("test"))
    part = np.full(len(row), "", dtype=object)
    part[asked & (at < corpus.cuts["test"][row])] = "history"
    part[asked & (at == corpus.cuts["test"][row])] = "target"
    part[(corpus.splits[row] == SPLITS["train"]) & (at < corpus.cuts["valid"][row])] = "train"
    return row, at, part


def extend(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """ML-1M without every twentieth item, then with it."""
    whole = corpus_of("ml-1m", given)
    new = np.arange(whole.num_ids) % WITHHELD == WITHHELD // 2
    rows = [whole.vocab.names(row[~new[row]].tolist()) for row in map(whole.row, range(len(whole)))]
    keys = whole.sequences["key"].to_pylist()
    earlier = prepare_like(dict(zip(keys, rows, strict=True)))
    first = Superbloom(preset="sequence", **hashes(4)).fit(earlier, minutes=given.minutes, quiet=True)
    found = {"names": earlier.num_ids, "new names": int(new.sum()), "minutes": given.minutes, "continued": CONTINUED}
    found["before"] = {"old": first.evaluate(earlier, yardsticks=False, filter_seen=True)["recall"]["10"]["value"]}
    names = whole.vocab.names(np.flatnonzero(new).tolist())
    first.extend(names)
    found["extended"] = split_recall(first, whole, set(names))
    first.remember(whole, replace=True)  # items were put between others, so rows have not just grown
    found["remembered, not trained"] = split_recall(first, whole, set(names))
    second = Superbloom().fit(whole, from_model=first, minutes=CONTINUED, quiet=True)
    found["continued on the newer log"] = split_recall(second, whole, set(names))
    anew = Superbloom(preset="sequence", **hashes(4)).fit(whole, minutes=given.minutes + CONTINUED, quiet=True)
    found["trained from scratch"] = split_recall(anew, whole, set(names))
    results["extend"] = found
    print(json.dumps(found, indent=1), flush=True)
    keep(RESULTS, results)


def prepare_like(rows: dict[str, list[str]]) -> Corpus:
    """Rows cut as prepare interactions cuts them."""
    events = [(user, item) for user, items in rows.items() for item in items]
    users, items = zip(*events, strict=True)
    return Corpus.from_interactions(pa.table({"user_id": users, "item_id": items}), min_item_count=1)


def split_recall(superbloom: Superbloom, corpus: Corpus, new: set[str]) -> dict[str, float]:
    """recall@10 where an old item is asked, and where a new one is."""
    corpus = corpus.under(superbloom.model.vocab)
    held_out = HeldOut.of(corpus, "test", superbloom.model.config.seq_len)
    hit = ranks(superbloom.predictor, held_out, filter_seen=True).rank < 10
    is_new = np.array([name in new for name in corpus.vocab.names(held_out.targets.tolist())])
    return {"old": float(hit[~is_new].mean()), "new": float(hit[is_new].mean()), "new asked": int(is_new.sum())}


def prepare(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Both read the same file of string ids and times, Parquet we alone; ours also cuts, orders, writes the corpus."""
    for path in events_of(given):
        command = [sys.executable, "-m", "superbloom", "prepare", "interactions", str(path), "--time", "ts"]
        command += ["--out", str(given.work / "events"), "--json", "--overwrite"]
        found = results["prepare"].setdefault(path.suffix[1:], {})
        if given.before is not None:
            found["before"] = timed(command, os.environ | {"PYTHONPATH": str(given.before)})
        found["superbloom"] = timed(command)
        if given.rectools is not None and path.suffix == ".csv":
            script = [str(given.rectools), str(HERE / "peers" / "rectools_prepare.py"), str(path)]
            found["rectools"] = last_line(subprocess.run(script, capture_output=True, text=True))
        print(path.suffix[1:], found, flush=True)
        keep(RESULTS, results)


def events_of(given: argparse.Namespace) -> list[Path]:
    """The synthetic log as Parquet and as CSV, written once."""
    given.work.mkdir(parents=True, exist_ok=True)
    paths = [given.work / f"events.{kind}" for kind in ("parquet", "csv")]
    if not all(path.exists() for path in paths):
        alone(synthetic, *paths)
    return paths


def synthetic(*paths: Path) -> None:
    """Events of users and items, some far more frequent than others, in random order."""
    rng = np.random.default_rng(0)
    number = {"user": (rng.random(EVENTS) ** 2 * USERS), "item": (rng.random(EVENTS) ** 3 * ITEMS)}
    columns: dict[str, Any] = {}
    for role, values in number.items():
        names = pa.array([f"{role}-{n:07d}" for n in range(USERS if role == "user" else ITEMS)])
        columns[f"{role}_id"] = names.take(pa.array(values.astype(np.int64)))
    columns["ts"] = rng.integers(1_600_000_000, 1_700_000_000, EVENTS)
    pq.write_table(pa.table(columns), paths[0])
    pyarrow.csv.write_csv(pa.table(columns), paths[1])


def timed(command: list[str], surroundings: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Seconds on the clock and of the processor, and peak memory, of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=surroundings)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    seconds = {"seconds": time.perf_counter() - start, "CPU seconds": usage.ru_utime + usage.ru_stime}
    return seconds | {"peak GB": usage.ru_maxrss * 1024 / 1e9}


def engines(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """The same log by both engines."""
    for engine in ("duckdb", "spark"):
        log = given.data / "interactions" / ML1M
        with tempfile.TemporaryDirectory() as scratch:
            prepare_interactions([log], Path(scratch) / "corpus", format="lines", min_item_count=5, engine=engine)
            corpus = Corpus.open(Path(scratch) / "corpus")
        results["engines"][engine] = corpus.checksums | {"fingerprint": corpus.fingerprint()}
        print(engine, results["engines"][engine], flush=True)
    keep(RESULTS, results)


def cluster(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Spark's executors read the Parquet file where it is; the command reads what they write."""
    path = events_of(given)[0]
    with tempfile.TemporaryDirectory(dir=given.work) as scratch:
        folder = Path(scratch)
        for engine in ("duckdb", "spark"):
            with standalone(folder) if engine == "spark" else nullcontext() as master:
                surroundings = os.environ | (
                    {"PYSPARK_SUBMIT_ARGS": f"--master {master} pyspark-shell"} if master else {}
                )
                command = [sys.executable, "-m", "superbloom", "prepare", "interactions", str(path), "--time", "ts"]
                command += ["--engine", engine, "--out", str(folder / engine), "--json"]
                start = time.perf_counter()
                with Watched(folder) as watched:
                    subprocess.run(command, env=surroundings, stdout=subprocess.DEVNULL, check=True)
                seconds = time.perf_counter() - start
            corpus = Corpus.open(folder / engine)
            results["cluster"][engine] = {
                "seconds": seconds,
                "CPU seconds": sum(watched.cpu.values()),
                "peak GB": {role: value for role, value in watched.peaks.items() if role != "other"},
                "temporary GB": watched.disk,
                "fingerprint": corpus.fingerprint(),
            }
            print(engine, results["cluster"][engine], flush=True)
    keep(RESULTS, results)


def report(_: argparse.Namespace, results: dict[str, Any]) -> None:
    from benchmarks.recommend_report import tables

    found = tables(results)
    if "cluster" in found:
        between_marks(DOC.with_name("scale.md"), {"cluster": found.pop("cluster")})
    between_marks(DOC, found)


def alone(function: Any, *arguments: Any) -> Any:
    """The function's result, computed in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_gb() -> float:
    """The most memory that this process has taken; the kernel's ru_maxrss would count the one it was started by."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {kind.__name__: kind for kind in (sets, popular, peers, extend, prepare, engines, cluster, report)}
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--data", type=Path, default=os.environ.get("SUPERBLOOM_DATA"), help="folder of the real data")
    parser.add_argument("--work", type=Path, default=Path("recommend-runs"), help="folder for corpora and events")
    parser.add_argument("--sets", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--alphas", nargs="*", type=int)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--split", choices=("valid", "test"), default="test")
    parser.add_argument("--rectools", type=Path, help="Python of the environment of RecTools")
    parser.add_argument("--before", type=Path, help="prepare: folder src of an earlier version, measured as well")
    parser.add_argument("--peers", nargs="*", default=["bert4rec", "sasrec"], help="models of RecTools")
    parser.add_argument(
        "--options", nargs="*", default=[], help="of the model or its training: dim=64 learning_rate=1e-3"
    )
    given = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    kinds[given.what](given, {part: stored.get(part, {}) for part in PARTS})


if __name__ == "__main__":
    main()
