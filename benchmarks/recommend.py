"""Next items on public logs, beside published numbers.   python benchmarks/recommend.py --help

    sets      each set with each alpha for so many minutes; whole catalogue ranked, what was seen left out
    extend    items withheld from training, added later: recall before and after a short continuation

ML-1M, Beauty: the last item of each user is asked (HR@10, NDCG@10). Nowplaying: the last click of the test sessions
(P@20, MRR@20, nothing left out). Logs lie in --data; what is measured is kept in benchmarks/results/recommend.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from record import surroundings

from superbloom import Corpus, Superbloom
from superbloom.corpus import SPLITS
from superbloom.evaluate import HeldOut, ranks
from superbloom.prepare.files import open_lines
from superbloom.prepare.interactions import prepare_interactions

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "recommend.json"
ML1M, BEAUTY = "ml-1m_sequences_by_time.txt.xz", "bert4rec_beauty.txt.xz"
SESSIONS, ASKED = "gcegnn_Nowplaying_train_sessions.txt.xz", "gcegnn_Nowplaying_test_prefix_target.txt.xz"
MODELS = {"ml-1m": (1, 4), "beauty": (1, 10), "nowplaying": (1, 10)}
WITHHELD = 20  # every so many-th item
CONTINUED = 2.0  # minutes


def corpus_of(name: str, data: Path) -> Corpus:
    folder = data / "interactions"
    if name == "ml-1m":
        return prepare_interactions([folder / ML1M], format="lines", min_item_count=5)
    if name == "beauty":
        return prepare_interactions([folder / BEAUTY], user=0, item=1, min_item_count=1)
    return nowplaying(folder)


def nowplaying(folder: Path) -> Corpus:
    """Sessions to train on, some of them for validation; and those whose last click is asked."""
    rows = {f"session {number}": line.split() for number, line in enumerate(open_lines(folder / SESSIONS))}
    asked = {f"asked {n}": line.replace("\t", " ").split() for n, line in enumerate(open_lines(folder / ASKED))}
    whole = Corpus.from_keyed((rows | asked).items())
    lengths, split = np.diff(whole.offsets), whole.splits.copy()
    split[len(rows) :] = SPLITS["test"]
    split[: len(rows)][split[: len(rows)] == SPLITS["test"]] = SPLITS["train"]
    table = whole.sequences.set_column(whole.sequences.column_names.index("split"), "split", pa.array(split))
    valid_from, test_from = lengths - (split != SPLITS["train"]), lengths - (split == SPLITS["test"])
    for column, values in (("valid_from", valid_from), ("test_from", test_from)):
        table = table.append_column(column, pa.array(values, pa.int32()))
    return Corpus(whole.vocab, table)


def sets(given: argparse.Namespace, results: dict[str, Any]) -> None:
    for name in given.sets:
        corpus = corpus_of(name, given.data)
        for alpha in given.alphas or MODELS[name]:
            label = f"alpha={alpha}, {given.minutes:g} min" + "".join(f", {option}" for option in given.options)
            if label in results["sets"].setdefault(name, {}):
                continue
            superbloom = Superbloom(preset="sequence", **hashes(alpha), **options(given, "model"))
            superbloom.fit(corpus, minutes=given.minutes, quiet=True, **options(given, "train"))
            figures = superbloom.evaluate(corpus, yardsticks=False, filter_seen=name != "nowplaying")
            results["sets"][name][label] = {
                "parameters": superbloom.model.network.num_parameters(),
                "steps": superbloom.training["steps"],
                "minutes": superbloom.training["seconds"] / 60,
                "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "history": superbloom.metrics["history"],
                **{metric: figures[metric] for metric in ("recall", "ndcg", "mrr", "coverage", "popularity bias")},
            }
            shown = {k: round(figures["recall"][k]["value"], 4) for k in ("10", "20")}
            print(
                name, label, shown, f"NDCG@10 {figures['ndcg']['10']:.4f} MRR@20 {figures['mrr']['20']:.4f}", flush=True
            )
            keep(results)


def hashes(alpha: int) -> dict[str, int]:
    return {"num_hashes": 1 if alpha == 1 else 2, "alpha": alpha}


def options(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Options like dim=64 or learning_rate=1e-3, those of the model or those of training."""
    from dataclasses import fields

    from superbloom.config import ModelConfig

    of_model = {field.name for field in fields(ModelConfig)}
    pairs = [option.split("=", 1) for option in given.options]
    return {name: json.loads(value) for name, value in pairs if (name in of_model) == (kind == "model")}


def extend(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """ML-1M without every twentieth item, then with it."""
    whole = corpus_of("ml-1m", given.data)
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
    second = Superbloom().fit(whole, from_model=first, minutes=CONTINUED, quiet=True)
    found["continued on the newer log"] = split_recall(second, whole, set(names))
    anew = Superbloom(preset="sequence", **hashes(4)).fit(whole, minutes=given.minutes + CONTINUED, quiet=True)
    found["trained anew"] = split_recall(anew, whole, set(names))
    results["extend"] = found
    print(json.dumps(found, indent=1), flush=True)
    keep(results)


def prepare_like(rows: dict[str, list[str]]) -> Corpus:
    """Rows cut as prepare interactions cuts them."""
    events = [(user, item) for user, items in rows.items() for item in items]
    users, items = zip(*events, strict=True)
    return Corpus.from_interactions(pa.table({"user_id": users, "item_id": items}), min_item_count=1)


def split_recall(superbloom: Superbloom, corpus: Corpus, new: set[str]) -> dict[str, float]:
    """HR@10 where an old item is asked, and where a new one is."""
    corpus = corpus.under(superbloom.model.vocab)
    held_out = HeldOut.of(corpus, "test", superbloom.model.config.seq_len)
    hit = ranks(superbloom.predictor, held_out, filter_seen=True).rank < 10
    is_new = np.array([name in new for name in corpus.vocab.names(held_out.targets.tolist())])
    return {"old": float(hit[~is_new].mean()), "new": float(hit[is_new].mean()), "new asked": int(is_new.sum())}


def keep(results: dict[str, Any]) -> None:
    temporary = RESULTS.with_suffix(".new")
    temporary.write_text(json.dumps(results | surroundings(), indent=1, ensure_ascii=False) + "\n")
    temporary.replace(RESULTS)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sets", "extend"))
    parser.add_argument("--data", type=Path, default=os.environ.get("SUPERBLOOM_DATA"), help="folder of the real data")
    parser.add_argument("--sets", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--alphas", nargs="*", type=int)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument(
        "--options", nargs="*", default=[], help="of the model or its training: dim=64 learning_rate=1e-3"
    )
    given = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results = {part: stored.get(part, {}) for part in ("sets", "extend")}
    {"sets": sets, "extend": extend}[given.what](given, results)


if __name__ == "__main__":
    main()
