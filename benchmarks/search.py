"""What does a certified top-20 cost, beside the head that feeds it and beside other ways?   python -m benchmarks.search

Sizes up to 100 million ids, alpha=50, m=2, one query and 64 at once; log-probabilities as in beliefs.py, and flat ones
in which all buckets tie. Methods of a table take turns, so that ratios are of one run. --out keeps the figures, --plot
draws them; faiss (pip install faiss-cpu) is left out where it is not installed. Half an hour on two cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.beliefs import TRAINED, WEAK, beliefs
from superbloom.config.model import ModelConfig
from superbloom.hashing.bloom import BloomHash
from superbloom.model.head import Head
from superbloom.model.network import Network
from superbloom.search import Bonus, IdPrior, exhaustive, top_k
from tools.record import report, surroundings

K = 20
SIZES = (100_000, 1_270_000, 5_281_889, 20_000_000, 100_000_000)
DENSE_DIM = 128
MEMORY = 14e9  # for the dense weights
PARTS = ("search", "head", "dense", "faiss", "certified", "worst")


def race(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each way; they take turns until the time is over, once at least."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end or not all(times.values()):
        for name, way in ways.items():
            # A slow way has had its share sooner.
            if sum(times[name]) < seconds or not times[name]:
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
        if all(sum(spent) >= seconds for spent in times.values()):
            break
    return {name: 1000 * float(np.median(spent)) for name, spent in times.items()}


def gather_and_topk(log_probs: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Exhaustive scoring as PQTopK does it: gather, add, topk, query by query."""
    found = []
    for query in log_probs:
        scores = sum(torch.take(query[j], columns[j]) for j in range(len(columns)))
        found.append(scores.topk(K).indices)
    return torch.stack(found)


def searches(num_ids: int, seconds: float) -> dict[str, Any]:
    """The search alone, at one size."""
    start = time.perf_counter()
    bloom = BloomHash.random(num_ids, num_hashes=2, alpha=50)
    figures: dict[str, Any] = {"ids": num_ids, "hashing_seconds": time.perf_counter() - start}
    inputs = {"trained": beliefs(bloom, 64, *TRAINED, seed=0), "weak": beliefs(bloom, 64, *WEAK, seed=0)}
    inputs["flat"] = torch.zeros_like(inputs["weak"]).log_softmax(-1)
    counts = torch.from_numpy(np.random.default_rng(0).permutation(num_ids) + 1)
    prior = IdPrior.of((num_ids / counts).int(), bloom)
    bonus = Bonus.of(0.75 * prior.surplus, bloom)
    gather = num_ids <= 20_000_000
    columns = bloom.columns.long() if gather else bloom.columns
    for name, log_probs in inputs.items():
        if name == "flat":
            log_probs = log_probs[: 64 if num_ids <= 5_281_889 else 2]
        found = top_k(log_probs, bloom, K, combine="sum")
        assert bool(found.certified.all())
        some = exhaustive(log_probs[:2], bloom, K, combine="sum")
        assert torch.equal(found.ids[:2], some.ids)
        beam = top_k(log_probs, bloom, K, combine="sum", beam=20, max_rounds=1)
        result = {"width": found.width.float().mean().item(), "scored": found.scored.float().mean().item()}
        likely = top_k(log_probs, bloom, K, prior=prior)
        assert bool(likely.certified.all())
        assert torch.equal(likely.ids[:2], exhaustive(log_probs[:2], bloom, K, prior=prior).ids)
        result["posterior_width"] = likely.width.float().mean().item()
        result["beam_20_certified"] = beam.certified.float().mean().item()
        for batch in (1, 64) if name != "flat" or num_ids <= 5_281_889 else (1,):
            part = log_probs[:batch].contiguous()
            ways: dict[str, Callable[[], object]] = {
                "exact": lambda part=part: top_k(part, bloom, K, combine="sum"),
                "beam 20": lambda part=part: top_k(part, bloom, K, combine="sum", beam=20, max_rounds=1),
                "exact with prior": lambda part=part: top_k(part, bloom, K, combine="sum", bonus=bonus),
                "posterior": lambda part=part: top_k(part, bloom, K, prior=prior),
            }
            if batch == 1 or num_ids <= 5_281_889:
                ways["rank every id"] = lambda part=part: exhaustive(part, bloom, K, combine="sum")
                ways["rank by posterior"] = lambda part=part: exhaustive(part, bloom, K, prior=prior)
                if gather:
                    ways["gather and topk"] = lambda part=part: gather_and_topk(part, columns)
            result[f"batch {batch}"] = race(ways, seconds)
        figures[name] = result
        print(f"{num_ids:,} {name}: {json.dumps(result)}", flush=True)
    return figures


def heads(num_ids: int, dim: int, seconds: float) -> dict[str, Any]:
    """The head, its search and the whole answer, at one size and width."""
    config = ModelConfig(num_ids=num_ids, alpha=50, dim=dim, heads=1, ffn_dim=1, layers=1, output_bias=False)
    network = Network(config)
    bloom = BloomHash.random(num_ids, num_hashes=2, alpha=50)
    believed = beliefs(bloom, 64, *TRAINED, seed=0)
    figures: dict[str, Any] = {"ids": num_ids, "dim": dim}
    precisions = {name: Head(network, name) for name in ("fp32", "bf16", "int8")}
    for batch in (1, 64):
        y = torch.randn(batch, 2, dim)
        part = believed[:batch].contiguous()
        ways: dict[str, Callable[[], object]] = {}
        for name, head in precisions.items():
            ways[f"head {name}"] = lambda head=head, y=y: head.log_probs(y)
            # A random head gives nothing to search in: it is computed, and what is believed is searched.
            ways[f"head {name} + search"] = lambda head=head, y=y, part=part: (
                head.log_probs(y),
                top_k(part, bloom, K, combine="sum"),
            )
        figures[f"batch {batch}"] = race(ways, seconds)
    print(f"{num_ids:,} d={dim}: {json.dumps(figures)}", flush=True)
    return figures


def dense(num_ids: int, seconds: float) -> dict[str, Any] | None:
    """A score for every id by one product with a row for each, and topk."""
    if 4 * num_ids * DENSE_DIM > MEMORY:
        return None
    weight = torch.empty(2, num_ids // 2, DENSE_DIM).normal_()  # two halves: each core multiplies one
    figures: dict[str, Any] = {"ids": num_ids, "dim": DENSE_DIM}
    for batch in (1, 64):
        y = torch.randn(batch, DENSE_DIM)

        def answer(y: torch.Tensor = y) -> None:
            for few in y.split(max(1, int(2e9 // (4 * num_ids)))):
                if len(few) == 1:
                    torch.bmm(weight, few.T.expand(2, -1, -1)).flatten().topk(K)
                else:
                    (few @ weight.flatten(0, 1).T).topk(K)

        figures[f"batch {batch}"] = race({"dense": answer}, seconds)
    print(f"{num_ids:,} dense: {json.dumps(figures)}", flush=True)
    return figures


def neighbours(num_ids: int, seconds: float) -> dict[str, Any] | None:
    """faiss over vectors around 1,000 centres, inner product; recall is against its own flat index."""
    try:
        import faiss
    except ImportError:
        return None
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, DENSE_DIM), dtype=np.float32)
    vectors = centres[rng.integers(1000, size=num_ids)]
    vectors += 0.7 * rng.standard_normal(vectors.shape, dtype=np.float32)
    queries = vectors[rng.integers(num_ids, size=64)] + 0.7 * rng.standard_normal((64, DENSE_DIM), dtype=np.float32)
    figures: dict[str, Any] = {"ids": num_ids, "dim": DENSE_DIM}
    cells = int(4 * np.sqrt(num_ids))
    makers = {
        "Flat": lambda: faiss.IndexFlatIP(DENSE_DIM),
        "IVF": lambda: faiss.IndexIVFFlat(faiss.IndexFlatIP(DENSE_DIM), DENSE_DIM, cells, faiss.METRIC_INNER_PRODUCT),
    }
    if num_ids <= 1_270_000:  # five million take more than an hour to build here
        makers["HNSW"] = lambda: faiss.IndexHNSWFlat(DENSE_DIM, 16, faiss.METRIC_INNER_PRODUCT)
    truth = None
    for name, make in makers.items():
        index = make()
        start = time.perf_counter()
        if name == "IVF":
            index.cp.niter = 4
            index.train(vectors[rng.integers(num_ids, size=min(num_ids, 40 * cells))])
            index.nprobe = 16
        if name == "HNSW":
            index.hnsw.efSearch = 64
        index.add(vectors)
        built = time.perf_counter() - start
        found = index.search(queries, K)[1]
        truth = found if truth is None else truth
        recall = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)]))
        one, many = (lambda n=n, index=index: index.search(queries[:n], K) for n in (1, 64))
        figures[name] = {"build_seconds": built, "recall": recall, **race({"batch 1": one, "batch 64": many}, seconds)}
        del index, one, many
        gc.collect()
    print(f"{num_ids:,} faiss: {json.dumps(figures)}", flush=True)
    return figures


def certified_by_width(num_ids: int) -> dict[str, Any]:
    """The share of queries whose answer one round of a given width certifies."""
    bloom = BloomHash.random(num_ids, num_hashes=2, alpha=50)
    figures: dict[str, Any] = {"ids": num_ids}
    for name, belief in (("trained", TRAINED), ("weak", WEAK)):
        log_probs = beliefs(bloom, 256, *belief, seed=1)
        figures[name] = {
            f"k={k}": {
                str(width): top_k(log_probs, bloom, k, combine="sum", beam=width, max_rounds=1)
                .certified.float()
                .mean()
                .item()
                for width in (1, 2, 5, 10, 20, 50, 100, 200, 500)
            }
            for k in (1, K)
        }
    print(f"certified by width: {json.dumps(figures)}", flush=True)
    return figures


def worst_case(num_ids: int, queries: int) -> dict[str, Any]:
    """One query at a time, beliefs of any kind: exponents from .2 to 1.4, noise up to 1."""
    bloom = BloomHash.random(num_ids, num_hashes=2, alpha=50)
    bloom.columns, bloom.spans  # noqa: B018 (made once, before times are taken)
    rng = np.random.default_rng(7)
    times, widths, rounds, direct, wrong = [], [], [], 0, 0
    for number in range(queries):
        log_probs = beliefs(bloom, 1, rng.uniform(0.2, 1.4), rng.uniform(0, 1), seed=number)
        start = time.perf_counter()
        found = top_k(log_probs, bloom, K, combine="sum")
        times.append(1000 * (time.perf_counter() - start))
        widths.append(int(found.width))
        rounds.append(int(found.rounds))
        direct += int(found.scored) == num_ids
        assert bool(found.certified)
        if number % 50 == 0:
            wrong += not torch.equal(found.ids, exhaustive(log_probs, bloom, K, combine="sum").ids)
    share = {f"p{q}": float(np.percentile(times, q)) for q in (50, 90, 99, 99.9)}
    figures = {"ids": num_ids, "queries": queries, "ms": share | {"max": max(times)}, "width_max": max(widths)}
    figures |= {"rounds_max": max(rounds), "ranked_directly": direct, "compared": -(-queries // 50), "wrong": wrong}
    print(f"worst case: {json.dumps(figures)}", flush=True)
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options.add_argument("--seconds", type=float, default=1.2, help="to spend on each figure")
    options.add_argument("--queries", type=int, default=10_000, help="of the worst case")
    options.add_argument("--out", type=Path, help="a JSON file for the figures; parts it has and that are not run stay")
    options.add_argument("--plot", type=Path, help="a PNG file for the picture")
    given = options.parse_args()
    figures: dict[str, Any] = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    figures |= {part: [] for part in given.parts}
    middle = [size for size in given.sizes if size <= 20_000_000]
    largest = max(size for size in middle if size <= 5_281_889)
    with torch.inference_mode():
        for part, sizes, measure in (
            ("search", given.sizes, lambda size: searches(size, given.seconds)),
            ("head", middle, lambda size: [heads(size, dim, given.seconds) for dim in (128, 768)]),
            ("dense", middle, lambda size: dense(size, given.seconds)),
            ("faiss", [size for size in middle if size <= 5_281_889], lambda size: neighbours(size, given.seconds)),
            ("certified", [largest], certified_by_width),
            ("worst", [largest], lambda size: worst_case(size, given.queries)),
        ):
            for size in sizes if part in given.parts else ():
                found = measure(size)
                figures[part] += found if isinstance(found, list) else [found]
                gc.collect()
    if given.out:
        given.out.write_text(json.dumps(figures | surroundings(), indent=1) + "\n")
    report("Certified top-20: milliseconds", *tables(figures), figures)
    if given.plot:
        plot(figures, given.plot)


def tables(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Milliseconds of each way, a row for each input and batch."""
    header = ["ids", "log-probabilities", "batch", "posterior", "exact with prior", "exact", "beam 20", "rank every id"]
    header += ["rank by posterior", "gather and topk", "× exact", "posterior width", "width", "beam 20 certifies"]
    rows = []
    for one in figures.get("search", []):
        for name in ("trained", "weak", "flat"):
            for batch in (1, 64):
                if (ms := one[name].get(f"batch {batch}")) is None:
                    continue
                cells = [f"{ms[way]:.2f}" if way in ms else "–" for way in header[3:10]]
                plain = ms.get("gather and topk", ms.get("rank every id"))
                ratio = f"{plain / ms['exact']:.0f}×" if plain else "–"
                widths = [f"{one[name].get(width, 0):.0f}" for width in ("posterior_width", "width")]
                extra = [ratio, *widths, f"{one[name]['beam_20_certified']:.0%}"]
                rows.append([f"{one['ids']:,}", name, str(batch), *cells, *extra])
    return header, rows


def plot(figures: dict[str, Any], path: Path) -> None:
    """Milliseconds of one query against the size of the catalogue."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.4), layout="constrained")
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in figures.get("search", []):
        ms = one["trained"]["batch 1"]
        for way, label in (
            ("gather and topk", "gather every id + topk"),
            ("rank every id", "ours, ranking every id"),
            ("exact", "ours, certified"),
        ):
            if way in ms:
                lines.setdefault(label, []).append((one["ids"], ms[way]))
    for one in filter(None, figures.get("dense", [])):
        lines.setdefault("dense product, d=128, + topk", []).append((one["ids"], one["batch 1"]["dense"]))
    for one in figures.get("head", []):
        if one["dim"] == 128:
            lines.setdefault("our head, d=128, fp32", []).append((one["ids"], one["batch 1"]["head fp32"]))
            lines.setdefault("our head, d=128, int8", []).append((one["ids"], one["batch 1"]["head int8"]))
    styles = {"ours, certified": ("#c1440e", "o-", 2.2), "ours, ranking every id": ("#c1440e", "o--", 1.2)}
    for label, points in lines.items():
        colour, marks, width = styles.get(label, (None, "s:" if "head" in label else "^-", 1.2))
        axes.plot(*zip(*points, strict=True), marks, color=colour, label=label, linewidth=width, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="ids in the catalogue", ylabel="milliseconds, one query, top-20")
    axes.set_title("A certified search vanishes beside the head that feeds it", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
