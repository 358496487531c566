"""The figures of docs/how-it-works.md, drawn from a model and its tables, and the card of docs/model-card.md:

python -m benchmarks.figures                    trains a small model on the built-in corpus, in a minute of one core
python -m benchmarks.figures --model FOLDER     draws another model of the built-in corpus

The same commit draws the same figures, on one thread. Tables and the card are written between the marks of the pages.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import PercentFormatter

from benchmarks.beliefs import TRAINED, beliefs
from superbloom import Superbloom
from superbloom.answers import Certificate
from superbloom.config.model import ModelConfig
from superbloom.corpus.corpus import Corpus
from superbloom.hashing.bloom import BloomHash
from superbloom.model.extend import extend
from superbloom.model.model import Model
from superbloom.model.network import Network
from superbloom.predict import Predictor
from superbloom.predict.explain import facts_of
from superbloom.prepare.bundled import FREQUENT, bundled_corpus
from superbloom.search.certified import top_k
from superbloom.special import MASK, Special
from superbloom.store.card import card
from tools.record import between_marks

WIDTH = 7.3  # inches: 700 pixels of a page, on which 12 points are its text
BLUE, PALE, GREY, LIGHT, RED = "#1f6f8b", "#d6e6ec", "#667077", "#eef0f1", "#b5482f"
STYLE = {"font.size": 12, "svg.hashsalt": "superbloom", "axes.spines.top": False, "axes.spines.right": False}
OPTIONS: dict[str, Any] = {"dim": 64, "ffn_dim": 128}
STEPS: dict[str, Any] = {"steps": 300, "batch_size": 32, "seed": 0}
CONTEXT = ["Copenhagen", "Paris"]
LINE = 0.31  # inches
BEST = 5  # answers that are drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder to draw (default: one that is trained now)")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    matplotlib.use("Agg")
    matplotlib.rcParams.update(STYLE)
    torch.set_num_threads(1)
    corpus = bundled_corpus(FREQUENT)
    if given.model is not None:
        trained = Superbloom.from_pretrained(given.model)
    else:
        trained = Superbloom(**OPTIONS).fit(corpus, quiet=True, **STEPS)
    trained.evaluate(corpus)
    model = trained.model
    predictor = Predictor(replace(model, repetition=None, memory=None))  # the figures explain the network
    figures = {
        "digests": digests(model),
        "sizes": sizes(),
        "network": network(model),
        "softmax": softmax(predictor),
        "search": search(predictor),
        "work": work(),
        "coherent": coherent(model, corpus),
    }
    (given.docs / "figures").mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(given.docs / "figures" / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    tables = {"prior": prior_table(predictor), "added": added_table(model)}
    between_marks(given.docs / "how-it-works.md", {name: f"\n{table}\n" for name, table in tables.items()})
    training = trained.training | {"seconds": None}  # which differ from run to run
    text = card(model, training, trained.metrics, name="links")
    between_marks(given.docs / "model-card.md", {"card": f"\n````markdown\n{text}````\n"})


def digests(model: Model) -> Figure:
    """A name, and one that shares a bucket with it under each hash: their digests, and who else is there."""
    first = facts_of(model, CONTEXT[0])
    names = [first.name, *(bucket.mates[0] for bucket in first.buckets)]
    columns = [(0.285 + 0.36 * j, f"bucket by hash {j + 1}") for j in range(model.config.num_hashes)]
    figure, axes, tops = _rows(columns, len(names), model.config.alpha)
    for top, name in zip(tops, names, strict=True):
        facts = facts_of(model, name)
        axes.text(0, top - 0.1, _cut(name, 17), weight="bold", color=BLUE if name == first.name else "black", va="top")
        axes.text(0, top - 0.1 - LINE, f"id {facts.id:,}", color=GREY, va="top")
        axes.text(0, top - 0.1 - 2 * LINE, f"tokens {', '.join(map(str, facts.digest))}", color=GREY, va="top")
        for (left, _), bucket in zip(columns, facts.buckets, strict=True):
            members = model.vocab.names(model.bloom.members[bucket.hash][bucket.bucket].tolist())
            colour = PALE if first.name in members else LIGHT
            _bucket(axes, left, top, 0.34, members, {name: "black", first.name: BLUE}, colour, f"{bucket.bucket:,}")
    return figure


def coherent(model: Model, corpus: Corpus) -> Figure:
    """Who shares a bucket with three names, by a random function and by a coherent one."""
    functions = (model.bloom, BloomHash.coherent(corpus, alpha=model.config.alpha, coherent=1))
    names = ("Copenhagen", "Jazz", "Oxygen")
    columns = [(0.2, "random"), (0.61, "coherent")]
    figure, axes, tops = _rows(columns, len(names), model.config.alpha)
    for top, name in zip(tops, names, strict=True):
        axes.text(0, top - 0.1, name, weight="bold", color=BLUE, va="top")
        for (left, _), bloom, colour in zip(columns, functions, (LIGHT, PALE), strict=True):
            bucket = int(bloom.table[corpus.vocab.id(name), 0])
            members = corpus.vocab.names(bloom.members[0][bucket].tolist())
            _bucket(axes, left, top, 0.39, members, {name: BLUE}, colour)
    return figure


def _rows(columns: list[tuple[float, str]], rows: int, lines: int) -> tuple[Figure, Axes, list[float]]:
    """A canvas for rows of buckets with so many lines, the titles of its columns on it, and the top of each row."""
    each = LINE * lines + 0.45
    figure, axes = _canvas(each * rows + 0.25)
    top = each * rows + 0.2
    for left, title in columns:
        axes.text(left + 0.015, top, title, color=GREY, va="top")
    return figure, axes, [top - 0.35 - each * row for row in range(rows)]


def _bucket(
    axes: Axes,
    left: float,
    top: float,
    width: float,
    members: list[str],
    strong: dict[str, str],
    colour: str,
    number: str = "",
) -> None:
    _box(axes, left, top, width, LINE * len(members) + 0.15, colour)
    axes.text(left + width - 0.012, top - 0.1, number, color=GREY, ha="right", va="top")
    for i, name in enumerate(members):
        style = {"color": strong[name], "weight": "bold"} if name in strong else {}
        axes.text(left + 0.015, top - 0.1 - LINE * i, _cut(name, round(68 * width)), va="top", **style)


def sizes() -> Figure:
    """Memory of the embedding by alpha, for catalogues of three sizes; of a network laid out without storage."""
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.2), layout="constrained")
    alphas = [1, 2, 4, 10, 20, 50, 100]
    for num_ids, name in ((5_281_889, "5.3 million names"), (500_000, "500,000"), (20_000, "20,000")):
        megabytes = []
        for alpha in alphas:
            config = ModelConfig(num_ids=num_ids, num_hashes=1 if alpha == 1 else 2, alpha=alpha, dim=768, heads=12)
            with torch.device("meta"):
                megabytes.append(Network(config).embedding.weight.numel() * 4 / 1e6)
        axes.plot(alphas, megabytes, "o-", color=BLUE)
        axes.annotate(name, (alphas[1], megabytes[1]), (6, 8), textcoords="offset points")
        for place in (0, 5):
            axes.annotate(
                _size(megabytes[place]),
                (alphas[place], megabytes[place]),
                (-4, -18),
                textcoords="offset points",
                color=GREY,
            )
    axes.set(
        xscale="log", yscale="log", xticks=alphas, xlabel="α, names to a bucket (1: no hashing)", ylim=(0.6, 60_000)
    )
    axes.set_xticklabels(map(str, alphas))
    axes.set_yticks([1, 10, 100, 1000, 10_000], ["1 MB", "10 MB", "100 MB", "1 GB", "10 GB"])
    axes.minorticks_off()
    axes.set_title("The embedding of the tokens, d = 768, two hash functions", loc="left", fontsize=12)
    return figure


def network(model: Model) -> Figure:
    """What a query becomes on its way through, with the shapes of the tensors that were there."""
    ids = torch.tensor([[*(model.vocab.id(name) for name in CONTEXT), int(Special.MASK)]])
    places = torch.tensor([[len(CONTEXT)]])
    shapes: dict[str, tuple[int, ...]] = {}
    net, hooks = model.network, []
    for name, module in [("E", net.embedding), *((f"T{i + 1}", layer) for i, layer in enumerate(net.layers))]:
        hooks.append(
            module.register_forward_hook(lambda _, __, out, name=name: shapes.update({name: tuple(out.shape)}))
        )
    log_probs = model.log_probs(ids, places)
    for hook in hooks:
        hook.remove()
    found = top_k(log_probs, model.bloom, 10)
    tokens = shapes["E"]
    summed = (tokens[0], tokens[1], tokens[3])
    steps = [
        (f"ids of {', '.join(CONTEXT)}, [MASK]", tuple(ids.shape), LIGHT),
        ("digests: m tokens for each id", tokens[:3], LIGHT),
        (f"embedding E, {net.embedding.num_embeddings:,} × {model.config.dim}", tokens, PALE),
        ("an id is the sum of its tokens", summed, PALE),
        *((f"layer T{i + 1}: all attend to all", shapes[f"T{i + 1}"], PALE) for i in range(len(net.layers) - 1)),
        (f"layer T{len(net.layers)}: the [MASK] asks from its place", shapes[f"T{len(net.layers)}"], PALE),
        ("y · Eᵀ + bias, a softmax for each hash", tuple(log_probs.shape), PALE),
        ("certified search: the best ids", tuple(found.ids.shape), LIGHT),
    ]
    figure, axes = _canvas(0.62 * len(steps) + 0.25)
    axes.text(0, 0.62 * len(steps) + 0.2, "what it is", color=GREY, va="top")
    axes.text(0.69, 0.62 * len(steps) + 0.2, "shape", color=GREY, va="top")
    for i, (label, shape, colour) in enumerate(steps):
        top = 0.62 * (len(steps) - i) - 0.08
        _box(axes, 0, top, 0.66, 0.4, colour)
        axes.text(0.025, top - 0.2, label, va="center")
        axes.text(0.69, top - 0.2, " × ".join(f"{size:,}" for size in shape), va="center", color=BLUE)
        if i + 1 < len(steps):
            axes.annotate("", (0.33, top - 0.62), (0.33, top - 0.4), arrowprops={"arrowstyle": "->", "color": GREY})
    return figure


def softmax(predictor: Predictor) -> Figure:
    """The most probable buckets of both hashes for a query; those of the best answer are marked."""
    log_probs = _log_probs(predictor)
    bloom, vocab = predictor.model.target_bloom, predictor.model.target_vocab
    best = int(top_k(log_probs[None], bloom, 1).ids)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(WIDTH, 4.4), layout="constrained", sharex=True)
    for j, axes in enumerate((left, right)):
        values, buckets = log_probs[j].exp().topk(9)
        labels = []
        for bucket in buckets.tolist():
            members = bloom.members[j][bucket]
            name = vocab.name(best if best in members.tolist() else int(members[0]))
            labels.append(f"{_cut(name, 15)} +{len(members) - 1}")
        colours = [BLUE if bucket == int(bloom.table[best, j]) else "#b0b7bc" for bucket in buckets.tolist()]
        axes.barh(range(9), values.tolist(), color=colours)
        axes.set_yticks(range(9), labels)
        axes.invert_yaxis()
        axes.set_title(f"hash {j + 1}: 9 of {bloom.num_buckets:,}", loc="left", fontsize=12)
        axes.set_xlabel(f"p{'₁₂'[j]} of the bucket")
    return figure


def search(predictor: Predictor) -> Figure:
    """Figure 2 of the paper for one query: a few buckets of each hash do not certify the five best, some more do."""
    figure, both = pyplot.subplots(1, 2, figsize=(WIDTH, 5.6), layout="constrained")
    widths = range(2, predictor.model.target_bloom.num_buckets)
    log_probs, bloom = _log_probs(predictor)[None], predictor.model.target_bloom
    search_with = partial(top_k, log_probs, bloom, BEST, prior=predictor.id_prior, max_rounds=1)
    enough = next(width for width in widths if bool(search_with(beam=width).certified))
    proofs = [_certificate(predictor, beam=width, max_rounds=1) for width in (max(2, enough // 2), enough)]
    best = sorted((point for point in proofs[1].points if point.answer), key=lambda point: -sum(point.values))
    high = [1.1 * max(point.values[j] for proof in proofs for point in proof.points) for j in (0, 1)]
    for axes, proof in zip(both, proofs, strict=True):
        _plane(axes, proof, high)
    both[0].set_ylabel("what hash 2 adds")
    names = ", ".join(f"{i + 1} {point.name}" for i, point in enumerate(best))
    figure.supxlabel(f"what hash 1 adds to the probability\n{names}", fontsize=12, linespacing=1.6)
    return figure


def _certificate(predictor: Predictor, **options: Any) -> Certificate:
    query = predictor.query([*CONTEXT, MASK], BEST, explain=True, **options)
    explanation = predictor.answer([query])[0][0].explanation
    assert explanation is not None
    return explanation.certificate


def _plane(axes: Axes, proof: Certificate, high: list[float]) -> None:
    assert proof.edges is not None
    assert proof.kth is not None
    assert proof.bound is not None
    (left, bottom), (right, top), (x, y) = (0.0, 0.0), high, proof.edges
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, 1))
    axes.fill_between([left, x], bottom, y, color="#e3e6e8", lw=0)
    axes.annotate("not opened", (0, y), (4, -14), textcoords="offset points", color="#5b6469")
    for score, line, colour in ((proof.bound, "--", RED), (proof.kth, "-", BLUE)):
        axes.plot([left, right], [score - left, score - right], line, color=colour, lw=1.6)
    axes.plot([x], [y], "s", color=RED, ms=8)
    for opened, colour in ((False, GREY), (True, BLUE)):
        points = [point.values for point in proof.points if point.opened == opened and not point.answer]
        axes.plot(*zip(*points, strict=True), ".", color=colour, ms=5)
    best = sorted((point for point in proof.points if point.answer), key=lambda point: -sum(point.values))
    axes.plot(*zip(*(point.values for point in best), strict=True), "o", mfc="none", mec=BLUE, ms=10, mew=1.8)
    certified = proof.kth > proof.bound
    for i, point in enumerate(best if certified else []):
        axes.annotate(str(i + 1), point.values, (7, 3), textcoords="offset points")
    status = "certified" if certified else "not certified yet"
    axes.text(0, 1.19, status, transform=axes.transAxes, weight="bold")
    opened = f"{proof.opened[0]} + {proof.opened[1]} of 2 × {proof.num_buckets:,} opened"
    axes.text(0, 1.13, opened, transform=axes.transAxes)
    axes.text(0, 1.07, f"fifth best {proof.kth:.1%}", transform=axes.transAxes, color=BLUE)
    axes.text(0, 1.01, f"bound {proof.bound:.1%}", transform=axes.transAxes, color=RED)


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def work() -> Figure:
    """How many ids a certified top-20 scores, by the size of the catalogue."""
    numbers = [20_000, 100_000, 500_000, 2_000_000]
    scored = []
    for num_ids in numbers:
        bloom = BloomHash.random(num_ids, 2, 20)
        found = top_k(beliefs(bloom, 8, *TRAINED, seed=0), bloom, 20, combine="sum", max_rounds=4)
        assert bool(found.certified.all())
        scored.append(float(found.scored.float().mean()))
    figure, axes = pyplot.subplots(figsize=(WIDTH, 3.6), layout="constrained")
    axes.plot(numbers, numbers, "o--", color="#b0b7bc")
    axes.plot(numbers, scored, "o-", color=BLUE)
    axes.annotate("every name", (numbers[1], numbers[1]), (-6, 10), textcoords="offset points", ha="right", color=GREY)
    axes.annotate(
        "names a certified top-20 scores", (numbers[0], scored[0]), (0, -24), textcoords="offset points", color=BLUE
    )
    axes.set(xscale="log", yscale="log", xlabel="names in the catalogue, α = 20", ylim=(300, 4e6))
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_yticks([1000, 10_000, 100_000, 1_000_000], ["1,000", "10,000", "100,000", "1,000,000"])
    axes.minorticks_off()
    return figure


def prior_table(predictor: Predictor) -> str:
    """The best answers by the paper's sum and by their probability."""
    lines = ["| | the paper's sum | | the probability | |", "|---|---|---|---|---|"]
    vocab = predictor.model.target_vocab
    found = [predictor.predict([*CONTEXT, MASK], 8, combine=combine)[0] for combine in ("sum", "posterior")]
    for i, pair in enumerate(zip(*found, strict=True)):
        counts = [vocab.count(vocab.id(one.name)) for one in pair]
        shown = [_signed(pair[0].score), f"{pair[1].probability:.1%}"]
        cells = [f"{one.name} ({n:,}) | {value}" for one, n, value in zip(pair, counts, shown, strict=True)]
        lines.append(f"| {i + 1} | {' | '.join(cells)} |")
    return "\n".join(lines)


def added_table(model: Model) -> str:
    """The digest of a name that was not there, and of those it is said to be like."""
    name, like = "Øresund Bridge", ["Denmark", "Sweden"]
    larger = extend(model, [name], like={name: like})
    lines = ["| name | bucket by hash 1 | by hash 2 |", "|---|---|---|"]
    for one in (*like, name):
        buckets = larger.bloom.buckets(larger.vocab.id(one)).tolist()
        lines.append(f"| {one} | {' | '.join(f'{bucket:,}' for bucket in buckets)} |")
    return "\n".join(lines)


def _log_probs(predictor: Predictor) -> torch.Tensor:
    ids = torch.tensor([[*(predictor.model.vocab.id(name) for name in CONTEXT), int(Special.MASK)]])
    return predictor.beliefs(ids, torch.tensor([[len(CONTEXT)]])).log_probs[0]


def _canvas(height: float) -> tuple[Figure, Axes]:
    """Nothing but a place for text and boxes: from 0 to 1, and in inches from below."""
    figure = pyplot.figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.01, 0, 0.98, 1))
    axes.set(xlim=(0, 1), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def _box(axes: Axes, left: float, top: float, width: float, height: float, colour: str) -> None:
    shape = "round,pad=0,rounding_size=.012"
    axes.add_patch(
        FancyBboxPatch((left, top - height), width, height, boxstyle=shape, fc=colour, ec="none", mutation_aspect=WIDTH)
    )


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


if __name__ == "__main__":
    main()
