"""What the laboratory found: recalls and differences with intervals over seeds, and a verdict on each claim.

With one seed, an interval covers the choice of hidden elements; with more, it is Student's t over seeds, whose weights,
batches and hash functions all differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from superbloom.evaluate import DECILES, KS
from superbloom.reproduce.claims import FAILS, HOLDS, MAX_BEAM_LOSS, UNDECIDED, Claim
from superbloom.reproduce.laboratory.cells import (
    ALPHA,
    BASE,
    COHERENT_ALPHAS,
    DEEP,
    NEGATIVES,
    OURS,
    SIZED,
    TRAINING,
    WIDE,
    cell_name,
    sampled_name,
)
from superbloom.reproduce.results import Difference

Terms = Sequence[tuple[str, int]]  # names of cells, each with the sign of its recall in a difference
CONFIDENCE = 0.975


class Findings:
    """The finished cells by name, and the worlds by name."""

    def __init__(self, settings: dict[str, Any], cells: list[dict[str, Any]], worlds: list[dict[str, Any]]) -> None:
        self.settings = settings
        self.worlds = {world["world"]: world for world in worlds}
        self.cells: dict[str, dict[int, dict[str, Any]]] = {}
        for cell in sorted(cells, key=lambda cell: cell["seed"]):
            self.cells.setdefault(cell["cell"], {})[cell["seed"]] = cell

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def first(self, name: str) -> dict[str, Any]:
        """Return a cell with its lowest seed."""
        return next(iter(self.cells[name].values()))

    def hits(self, name: str, seed: int, k: int) -> np.ndarray:
        """Return whether each hidden element is among the k best: by the paper's sum, or by probability in ours."""
        cell = self.cells[name][seed]
        return np.array(cell["ranks" if OURS in name else "ranks by sum"]) < k

    def difference(self, terms: Terms, k: int) -> Difference | None:
        """Return the sum of signed recalls at k over the seeds that all cells have; None if there is no such seed."""
        values = [self.signed(terms, seed, k) for seed in self.seeds(terms)]
        return _mean(values) if values else None

    def signed(self, terms: Terms, seed: int, k: int) -> np.ndarray:
        """Return the sum of signed hits at k of each hidden element."""
        return np.sum([sign * self.hits(name, seed, k).astype(float) for name, sign in terms], axis=0)

    def seeds(self, terms: Terms) -> list[int]:
        """Return the seeds that all these cells have."""
        if not all(name in self for name, _ in terms):
            return []
        return sorted(set.intersection(*({*self.cells[name]} for name, _ in terms)))

    def recall(self, name: str, k: int) -> Difference | None:
        """Return the recall of a cell."""
        return self.difference([(name, 1)], k)

    def curve(self, name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and validation recall, as the mean over seeds of what all of them reached.

        Validations after a tenth of the time are at other steps in each cell, and are left out.
        """
        every = TRAINING["valid_every"]
        curves = [
            {point["step"]: point[f"recall_at_{k}"] for point in cell["history"] if point["step"] % every == 0}
            for cell in self.cells[name].values()
        ]
        steps = sorted(set.intersection(*({*own} for own in curves)))
        return np.array(steps), np.mean([[own[step] for step in steps] for own in curves], axis=0)

    def through_buckets(self, name: str) -> dict[int, float]:
        """Return the most that perfect probabilities of buckets would find, by k, of a cell that ranks by the sum."""
        found = [cell["through buckets"] for cell in self.cells[name].values() if "through buckets" in cell]
        if OURS in name or not found:
            return {}
        return {k: float(np.mean([own[str(k)]["value"] for own in found])) for k in KS}

    def is_flat(self, name: str) -> bool:
        """Whether validation had stopped improving before time was over, with every seed."""
        return all(cell["seconds"] < 60 * cell["minutes"] for cell in self.cells[name].values())


def over_seeds(values: Sequence[float]) -> Difference:
    """Return the mean of one value per seed, with Student's interval.

    >>> over_seeds([0.1, 0.2, 0.3])
    Difference(value=0.2..., low=-0.04..., high=0.44...)
    """
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
    reach = float(stats.t.ppf(CONFIDENCE, len(values) - 1)) * error
    return Difference(mean, mean - reach, mean + reach)


def depth_terms(world: str = BASE, alpha: int = ALPHA) -> Terms:
    """The gain of depth when hashed, less that when not."""
    hashed, unhashed = ([cell_name(world, a, layers) for layers in (DEEP, 1)] for a in (alpha, 1))
    return [(hashed[0], 1), (hashed[1], -1), (unhashed[0], -1), (unhashed[1], 1)]


def size_terms(world: str = BASE, alpha: int = ALPHA) -> Terms:
    """A deep hashed model, less an unhashed one of its size."""
    return [(cell_name(world, alpha), 1), (cell_name(world, more=f"{SIZED} to α={alpha}"), -1)]


def sampled_terms(share_: float, log_q: bool) -> Terms:
    """The full softmax, less a sampled one."""
    return [(cell_name(), 1), (cell_name(more=sampled_name(share_, log_q)), -1)]


def lab_claims(findings: Findings) -> list[Claim]:
    """Return every claim that the finished cells can decide."""
    return [
        *_of(findings, "Table 3", "Depth gains more when hashed than when not", "recall@1 +21.6", depth_terms()),
        *_of(findings, "Table 3", "A deep hashed model beats one layer of its size", "recall@1 +12.8", _wide_terms()),
        *_of(findings, "Table 2", "A hashed model beats an unhashed one of its size", "recall@1 +14.9", size_terms()),
        *_sampled(findings),
        *_figure_3(findings),
        *_beams(findings),
        *_coherent(findings),
        *_unhashing(findings),
    ]


def verdict(difference: Difference) -> str:
    """Return the verdict on a difference that should be above zero."""
    return FAILS if difference.high < 0 else HOLDS if difference.low > 0 else UNDECIDED


def _of(findings: Findings, where: str, text: str, printed: str, terms: Terms) -> Iterator[Claim]:
    found = {k: findings.difference(terms, k) for k in KS}
    yield from _claim(where, text, printed, {f"recall@{k}": value for k, value in found.items() if value is not None})


def _claim(where: str, text: str, printed: str, found: dict[str, Difference]) -> Iterator[Claim]:
    if found:
        shown = "; ".join(f"{label} {value}" for label, value in found.items())
        each = {label: verdict(value) for label, value in found.items()}
        same = len({*each.values()}) == 1
        word = next(iter(each.values())) if same else "; ".join(f"{label}: {found}" for label, found in each.items())
        yield Claim(where, text, printed, shown, word)


def _wide_terms() -> Terms:
    return [(cell_name(alpha=ALPHA), 1), (cell_name(alpha=ALPHA, layers=1, more=WIDE), -1)]


def _sampled(findings: Findings) -> Iterator[Claim]:
    for log_q in (True, False):
        how = "with" if log_q else "without"
        terms = sampled_terms(NEGATIVES[0], log_q)
        text = f"A softmax over {NEGATIVES[0]:.1%} sampled negatives {how} logQ is worse than the full one"
        yield from _of(findings, "Table 2", text, "recall@1 +33.1; recall@20 +13.1", terms)
        apart = [
            findings.signed(terms, seed, 1) - findings.signed(terms, seed, KS[-1]) for seed in findings.seeds(terms)
        ]
        if apart:
            text = f"… and the gap is larger at recall@1 than at recall@{KS[-1]} ({how} logQ)"
            yield from _claim("Table 2", text, "+20.0", {"": _mean(apart)})


def _mean(values: list[np.ndarray]) -> Difference:
    """Return the mean of one number per hidden element and seed."""
    if len(values) == 1:
        return Difference.of(values[0], np.arange(len(values[0])))
    return over_seeds([float(value.mean()) for value in values])


def _figure_3(findings: Findings) -> Iterator[Claim]:
    terms = size_terms()
    hits = [findings.signed(terms, seed, 1) for seed in findings.seeds(terms)]
    if BASE not in findings.worlds or not hits:
        return
    tenths = np.array_split(np.argsort(-np.array(findings.worlds[BASE]["frequency"]), kind="stable"), DECILES)
    found = [verdict(_mean([each[tenth] for each in hits])) for tenth in tenths]
    shown = f"{found.count(HOLDS)} ahead, {found.count(FAILS)} behind of {DECILES}"
    word = HOLDS if found.count(HOLDS) == DECILES else FAILS if FAILS in found else UNDECIDED
    yield Claim(
        "Figure 3", "It is ahead at recall@1 in every tenth of the labels by frequency", "10 of 10", shown, word
    )


def _beams(findings: Findings) -> Iterator[Claim]:
    name = cell_name(alpha=ALPHA)
    beams = findings.cells.get(name, {}).get(0, {}).get("beams")
    if beams:
        gains = {k: beams["100"]["recall"][str(k)]["value"] - beams[str(k)]["recall"][str(k)]["value"] for k in KS}
        shown = "; ".join(f"recall@{k} {100 * gain:+.1f}" for k, gain in gains.items())
        word = HOLDS if max(gains.values()) <= MAX_BEAM_LOSS else FAILS
        yield Claim("Table 6", "A beam of B = k is enough: what B = 100 adds to it", "recall@20 +0.5", shown, word)


def _coherent(findings: Findings) -> Iterator[Claim]:
    for alpha in COHERENT_ALPHAS:
        random, both = cell_name(alpha=alpha), cell_name(alpha=alpha, more="2 coherent")
        if random in findings and both in findings:
            tokens = [
                findings.cells[both][seed]["tokens"]["value"] - findings.cells[random][seed]["tokens"]["value"]
                for seed in findings.seeds([(random, 1), (both, -1)])
            ]
            if len(tokens) > 1:
                text = f"Two coherent functions predict tokens better than none (α={alpha})"
                yield from _claim("Table 7", text, "+2.2 to +4.3", {"token recall@1": over_seeds(tokens)})
            text = f"… and names worse (α={alpha})"
            yield from _of(findings, "Table 7", text, "recall@1 +13.5 to +17.8", [(random, 1), (both, -1)])


def _unhashing(findings: Findings) -> Iterator[Claim]:
    name = cell_name(alpha=ALPHA)
    read = [cell["probe"]["read"] for cell in findings.cells.get(name, {}).values() if "probe" in cell]
    if read:
        gains = [own[-1] - own[0] for own in read]
        shown = " → ".join(share_text(np.mean([own[layer] for own in read])) for layer in range(len(read[0])))
        word = verdict(over_seeds(gains)) if len(gains) > 1 else HOLDS if gains[0] > 0 else FAILS
        text = f"Layers make the identity of an input readable (α={ALPHA}, after 0 to {DEEP - 1} layers)"
        yield Claim("Sec. 1", text, "“unhash”", shown, word)


def share_text(value: float) -> str:
    """A share in per cent.

    >>> share_text(0.25)
    '25.0'
    """
    return f"{100 * value:.1f}"


def interval(found: Difference | None) -> str:
    """A recall with its interval, in per cent."""
    if found is None:
        return "–"
    return f"{share_text(found.value)} ({share_text(max(0.0, found.low))}–{share_text(min(1.0, found.high))})"
