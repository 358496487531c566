"""Does a wide hashed model fill in words better than a narrow one of its size?   python -m benchmarks.text --help

    models       small stand-ins of Table 4's four models, so many minutes each; recall as in Table 5, and by kind
    throughput   examples a second beside Hugging Face's BertForMaskedLM of the same encoder, vocabulary and text
    report       tables, curves and the examples of Figure 5, into docs/text.md

The paper's pairs have equal sizes: baseline-h64 and hash40-h512, baseline-h256 and hash20-h1024. Here the unhashed
models are narrower, because the machine is smaller, and the hashed ones have the width that gives the same number of
parameters. Everything else is the same, minutes included. CORPUS is what `superbloom prepare text` makes. What is
measured is kept in benchmarks/results/text.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.config.presets import preset_options
from superbloom.config.training import TrainConfig
from superbloom.model.model import Model
from superbloom.reproduce import paper
from superbloom.reproduce.cells import cells
from superbloom.training.lightning_module import Training
from tools.record import between_marks, keep

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "text.json", HERE.parent / "docs" / "text.md"
HIDDEN = 5_000  # elements of test documents
WATCH = {"valid_rows": 1000, "valid_every": 10**9, "patience": 0}  # a run of minutes is validated after each tenth
SENTENCES = (*paper.SENTENCES, "The capital of France is [MASK].", "He was born in [MASK] and studied at the [MASK].")
WARM_UP, STEPS = 1, 4


def models(corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Options of each model by its name, e.g. baseline-h16."""
    return {cell.name: cell.model for cell in cells(corpus)}


def train(given: argparse.Namespace, results: dict[str, Any]) -> None:
    corpus = Corpus.open(given.corpus)
    results["corpus"] = corpus.counts() | {"kinds": np.bincount(corpus.vocab.kinds).tolist()}
    for name, options in models(corpus).items():
        if (given.models and name not in given.models) or name in results["models"]:
            continue
        before = time.process_time()
        superbloom = Superbloom("text", **options).fit(corpus, minutes=given.minutes, quiet=True, **WATCH)
        processor = (time.process_time() - before) / 60  # fewer than on the clock if it is shared
        figures = superbloom.evaluate(corpus, draws=HIDDEN)
        results["models"][name] = {
            "options": options,
            "parameters": superbloom.model.network.num_parameters(),
            "minutes": given.minutes,
            "processor minutes": processor,
            "steps": superbloom.training["steps"],
            "threads": int(os.environ["OMP_NUM_THREADS"]),
            "history": superbloom.metrics["history"],
            "test": figures,
            "examples": examples(superbloom),
        }
        print(name, {k: round(share["value"], 4) for k, share in figures["recall"].items()}, flush=True)
        if given.work:
            superbloom.save_pretrained(given.work / name)
        keep(RESULTS, results)


def examples(superbloom: Superbloom) -> dict[str, list[list[dict[str, Any]]]]:
    """The ten best of each mask, with what proves them."""
    return {
        text: [
            [{"name": p.name, "score": round(p.score, 3), "certified": p.certified} for p in found]
            for found in superbloom.predict(text, k=10)
        ]
        for text in SENTENCES
    }


def throughput(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Examples a second of our models and of Hugging Face's, each with the encoder of ours, on the same batches."""
    corpus = Corpus.open(given.corpus)
    for name, options in models(corpus).items():
        if given.models and name not in given.models:
            continue
        config = ModelConfig(num_ids=corpus.num_ids, **options)
        training = TrainConfig(steps=1, **preset_options("text")[1])
        whole = Training(Model.create(config, corpus.vocab), corpus, training)
        batches, optimizer = whole.batches(), whole.configure_optimizers()
        found = {"ours": rate([batches[step] for step in range(WARM_UP + STEPS)], whole, optimizer)}
        with tempfile.TemporaryDirectory() as folder:
            export(corpus, config, training, Path(folder) / "batches.npz")
            # An eighth of a batch at a time: of all its places and names, logits would take gigabytes, several times.
            found["Hugging Face"] = hugging_face(given, config, Path(folder) / "batches.npz", training.batch_size // 8)
        results["throughput"][name] = found
        print(name, found, flush=True)
        keep(RESULTS, results)


def rate(batches: list[Any], whole: Training, optimizer: Any) -> dict[str, Any]:
    seconds = []
    whole.model.network.train()
    for batch in batches:
        begin = time.perf_counter()
        whole.objective(batch, 1, 0).backward()
        whole.configure_gradient_clipping(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[WARM_UP:])
    return {"examples_per_second": len(batches[0].ids) / step, "batch": len(batches[0].ids)}


def export(corpus: Corpus, config: ModelConfig, training: TrainConfig, path: Path) -> None:
    """The same segments with 15 % masked as BERT does it; special ids after the others, labels −100 elsewhere."""
    from superbloom.special import Special
    from superbloom.training.batches import Batches

    batches = Batches(
        corpus, seq_len=config.seq_len, batch_size=training.batch_size, mask_share=0.15, seed=training.seed
    )
    shape = (WARM_UP + STEPS, training.batch_size, config.seq_len)
    ids, labels = np.full(shape, int(Special.PAD)), np.full(shape, -100)
    for step in range(WARM_UP + STEPS):
        batch = batches[step]
        ids[step, :, : batch.ids.shape[1]] = batch.ids
        row, column = np.nonzero(batch.targets.numpy() >= 0)
        labels[step, row, batch.places.numpy()[row, column]] = batch.targets.numpy()[row, column]
    np.savez(path, ids=np.where(ids < 0, corpus.num_ids - 1 - ids, ids), labels=labels, pad=corpus.num_ids)


def hugging_face(given: argparse.Namespace, config: ModelConfig, batches: Path, size: int) -> dict[str, Any]:
    sizes = {"dim": config.dim, "layers": config.layers, "heads": config.heads, "ffn-dim": config.ffn_dim}
    command = [given.hugging_face, HERE / "peers" / "hf_step.py", batches, "--batch", str(size)]
    command += [f"--{name}={value}" for name, value in sizes.items()]
    command += [f"--vocabulary={config.num_ids + len(SPECIAL)}", f"--warm-up={WARM_UP}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"batch": size, "error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


SPECIAL = ("[PAD]", "[MASK]", "[CLS]", "[SEP]")


def report(_: argparse.Namespace, results: dict[str, Any]) -> None:
    from benchmarks.text_report import picture, tables

    between_marks(DOC, tables(results))
    picture(results, DOC.parent)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "throughput", "report"))
    parser.add_argument("corpus", type=Path, nargs="?", help="a corpus folder; `report` needs none")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--work", type=Path, help="a folder to keep the trained models in")
    parser.add_argument("--hugging-face", default=sys.executable, help="a Python with transformers (peers/README.md)")
    given = parser.parse_args()
    if given.corpus is None and given.what != "report":
        parser.error("give the corpus folder")
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results = {part: stored.get(part, {}) for part in ("corpus", "models", "throughput")}
    {"models": train, "throughput": throughput, "report": report}[given.what](given, results)


if __name__ == "__main__":
    main()
