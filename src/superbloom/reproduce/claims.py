"""The paper's claims and a verdict on each: it holds, does not hold, or is undecided.

A claim that one model is better than another is undecided if zero is in the 95 % interval of the difference. Each
function yields the claims of one table or section, if the cells that it needs are finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from superbloom.evaluate import DECILES, KS, share
from superbloom.reproduce import paper
from superbloom.reproduce.cells import COHERENT_ALPHAS, PAPER_PREFIX
from superbloom.reproduce.results import Difference, Results

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
DOMINATING_SHARE = 0.5  # of the time of a step: above it, the output layer dominates
MAX_BEAM_LOSS = 0.005  # of recall: a beam of k is enough if it loses no more to a beam of 100


@dataclass(frozen=True)
class Claim:
    """One row of the report's table of claims."""

    where: str  # table or section of the paper
    text: str
    printed: str  # the paper's numbers
    found: str  # ours
    verdict: str


def claims(results: Results) -> list[Claim]:
    """Return every claim that the finished cells can decide."""
    return [
        *_size_claims(results),
        *_frequency_claims(results),
        *_depth_claims(results),
        *_beam_claims(results),
        *_coherent_claims(results),
        *_cost_claims(results),
        *_analogy_claims(results),
        *_text_claims(results),
    ]


def _verdict(difference: Difference) -> str:
    """Return the verdict on a difference that should be above zero."""
    return FAILS if difference.high < 0 else HOLDS if difference.low > 0 else UNDECIDED


def _compare(results: Results, one: str, other: str) -> tuple[str, str]:
    """Return the differences of two models at all ranks as text, and the verdict."""
    return _by_rank({k: results.difference(one, other, k) for k in KS})


def _by_rank(found: dict[int, Difference]) -> tuple[str, str]:
    """Return differences by rank as text, and one verdict if all ranks agree, else one for each rank."""
    shown, each = "; ".join(f"recall@{k} {value}" for k, value in found.items()), [_verdict(v) for v in found.values()]
    if len(set(each)) == 1:
        return shown, each[0]
    alike = {verdict: [f"recall@{k}" for k, own in zip(found, each, strict=True) if own == verdict] for verdict in each}
    return shown, "; ".join(f"{verdict} at {' and '.join(ranks)}" for verdict, ranks in alike.items())


def _printed(one: tuple[float, ...], other: tuple[float, ...]) -> str:
    return "; ".join(f"recall@{k} {a - b:+.1f}" for k, a, b in zip(KS, one, other, strict=True))


def _size_claims(results: Results) -> Iterator[Claim]:
    table = paper.TABLE_2
    for prefix, how in (("", ""), (PAPER_PREFIX, ", with inputs and outputs as in the paper")):
        if results.has_all(prefix + "superbloom", prefix + "baseline"):
            found = _compare(results, prefix + "superbloom", prefix + "baseline")
            text = f"A hashed model is more accurate than an unhashed one of its size{how}"
            yield Claim("Table 2", text, _printed(table["superbloom"], table["baseline"]), *found)
    if (sampled := results.sampled) is None or not results.has_all("superbloom", "baseline"):
        return
    found = _compare(results, "superbloom", sampled)
    text = "It is more accurate than a much larger one with a sampled softmax, in equal time"
    yield Claim("Table 2", text, _printed(table["superbloom"], table["sampled-softmax"]), *found)
    found = _compare(results, "baseline", sampled)
    text = "The sampled softmax is also worse than the small unhashed model"
    yield Claim("Table 2", text, _printed(table["baseline"], table["sampled-softmax"]), *found)


def _frequency_claims(results: Results) -> Iterator[Claim]:
    frequency = (results.yardsticks or {}).get("frequency")
    if not frequency or not results.has_all("superbloom", "baseline"):
        return
    tenths = np.array_split(np.argsort(-np.array(frequency), kind="stable"), DECILES)
    ours, theirs = (results.hits(name, 1) for name in ("superbloom", "baseline"))
    row = results.row(ours)
    found = [Difference.of((ours - theirs)[tenth], row[tenth]) for tenth in tenths]
    verdicts = [_verdict(difference) for difference in found]
    shown = ", ".join(f"{verdicts.count(verdict)} {word}" for verdict, word in ((HOLDS, "ahead"), (FAILS, "behind")))
    verdict = HOLDS if verdicts.count(HOLDS) == len(found) else FAILS if FAILS in verdicts else UNDECIDED
    text = "It is more accurate at recall@1 in every tenth of the labels by frequency"
    yield Claim("Figure 3", text, "10 of 10 ahead", f"{shown} of {len(found)}, beyond the intervals", verdict)
    hits = [Difference.of(ours[tenth], row[tenth]) for tenth in tenths]
    hardest = int(np.argmin([each.value for each in hits]))
    others = hits[1:3] if hardest not in (1, 2) else [*hits[:1], *hits[3:]]
    clear = all(hits[hardest].high < other.low for other in others)
    verdict = UNDECIDED if not clear else HOLDS if hardest in (1, 2) else FAILS
    text = "The hardest labels are in the second and third tenth, not among the rarest"
    second = f"{100 * hits[1].value:.1f} and {100 * hits[2].value:.1f} % there"
    yield Claim("Figure 3", text, "2, 3", f"tenth {hardest + 1}: {100 * hits[hardest].value:.1f} %; {second}", verdict)


def _depth_claims(results: Results) -> Iterator[Claim]:
    table = paper.TABLE_3
    for prefix, how in (("", ""), (PAPER_PREFIX, ", with inputs and outputs as in the paper")):
        names = ("superbloom-deep", "superbloom-l1", "baseline-deep", "baseline-l1", "superbloom-wide-l1")
        if not results.has_all(*(prefix + name for name in names)):
            continue
        deep, shallow, unhashed_deep, unhashed, wide = (prefix + name for name in names)
        found, verdict = _by_rank({k: _gain(results, (deep, shallow), (unhashed_deep, unhashed), k) for k in KS})
        gains = [results.difference(*pair, 1) for pair in ((deep, shallow), (unhashed_deep, unhashed))]
        found += f" (recall@1: hashed {100 * gains[0].value:+.1f}, unhashed {100 * gains[1].value:+.1f})"
        printed = [table[a][0] - table[b][0] for a, b in (names[:2], names[2:4])]
        text = f"Depth gains more when hashed than when not{how}"
        shown = f"recall@1 {printed[0] - printed[1]:+.1f} ({printed[0]:+.1f}, {printed[1]:+.1f})"
        yield Claim("Table 3", text, shown, found, verdict)
        text = f"A deep hashed model is better than a wide one of one layer and its size{how}"
        yield Claim("Table 3", text, _printed(table[names[0]], table[names[4]]), *_compare(results, deep, wide))
    if results.has_all("superbloom-set-l1", "superbloom-bag"):
        text = "A bag of digests is less accurate than even one layer that attends (both without distances)"
        yield Claim("Sec. 3.4", text, "–", *_compare(results, "superbloom-set-l1", "superbloom-bag"))


def _gain(results: Results, one: tuple[str, str], other: tuple[str, str], k: int) -> Difference:
    """Return how much more one pair gains than the other, on the same elements."""
    hits = [results.hits(a, k) - results.hits(b, k) for a, b in (one, other)]
    return Difference.of(hits[0] - hits[1], results.row(hits[0]))


def _beam_claims(results: Results) -> Iterator[Claim]:
    beams = results.first("superbloom").get("beams") if "superbloom" in results else None
    if beams:
        lost = {k: beams["100"]["recall"][str(k)]["value"] - beams[str(k)]["recall"][str(k)]["value"] for k in KS}
        found = "; ".join(f"recall@{k} {100 * lost[k]:+.1f}" for k in KS)
        verdict = HOLDS if all(round(each, 9) <= MAX_BEAM_LOSS for each in lost.values()) else FAILS
        printed = "recall@1 +0.2; recall@10 −0.4; recall@20 +0.5"
        yield Claim("Table 6", "A beam of B = k is enough: what B = 100 adds to it", printed, found, verdict)


def _coherent_claims(results: Results) -> Iterator[Claim]:
    for alpha in COHERENT_ALPHAS:
        names = [results.with_coherent(alpha, functions) for functions in range(3)]
        if not results.has_all(*names):
            continue
        # The tokens of an element depend on each other, and so do the elements of a row: rows are the observations.
        tokens = [share(results.first(name)["tokens"]["value"] * results.rows, results.rows) for name in names]
        found = " → ".join(f"{100 * each['value']:.1f}" for each in tokens)
        apart = tokens[2]["low"] > tokens[0]["high"]
        verdict = HOLDS if apart else FAILS if tokens[2]["high"] < tokens[0]["low"] else UNDECIDED
        printed = " → ".join(f"{paper.TABLE_7[alpha, c][0]:.1f}" for c in range(3))
        text = f"Two coherent functions instead of none predict tokens better (α={alpha}, token recall@1)"
        yield Claim("Table 7", text, printed, found, verdict)
        found = " → ".join(f"{100 * results.recall(name, 1)['value']:.1f}" for name in names)
        lost = results.difference(names[0], names[2], 1)
        printed = " → ".join(f"{paper.TABLE_7[alpha, c][1]:.1f}" for c in range(3))
        text = f"… and entities worse (α={alpha}, entity recall@1)"
        yield Claim("Table 7", text, printed, f"{found}; none minus two coherent {lost}", _verdict(lost))


def _cost_claims(results: Results) -> Iterator[Claim]:
    costs: dict[str, Any] = results.costs or {"steps": []}
    largest = max((row["ids"] for row in costs["steps"] if row["model"] == "superbloom"), default=None)
    if largest is None:
        return
    unhashed, hashed = (
        next(row for row in costs["steps"] if row["ids"] == largest and row["model"] == name)
        for name in ("unhashed", "superbloom")
    )
    part = unhashed["output layer"] / unhashed["step"]
    found = f"{part:.0%} of a step with {largest:,.0f} ids"
    verdict = HOLDS if part > DOMINATING_SHARE else FAILS
    yield Claim(
        "Sec. 2.4", "Without hashing, updating E^O is most of the cost of training", "dominates", found, verdict
    )
    faster = unhashed["step"] / hashed["step"]
    text = "Hashing makes a step cheaper without sampling"
    yield Claim("Sec. 2.4", text, "significantly", f"{faster:.1f} times as fast", HOLDS if faster > 1 else FAILS)
    row = max(costs["queries"], key=lambda row: row["ids"])
    faster, certified = (row["exhaustive"] / row[name] for name in ("approximate", "certified"))
    found = f"{faster:.0f} times with {row['ids']:,.0f} ids; certified {certified:.0f} times"
    verdict = HOLDS if faster >= paper.APPROXIMATE_SPEEDUP else FAILS
    text = "Approximate inference is ten times as fast as scoring all ids"
    yield Claim("Sec. 2.5", text, f"{paper.APPROXIMATE_SPEEDUP} times", found, verdict)


def _analogy_claims(results: Results) -> Iterator[Claim]:
    analogies = results.first("superbloom").get("analogies") if "superbloom" in results else None
    if analogies:
        first, ten = (sum(a["rank"] is not None and a["rank"] <= k for a in analogies) for k in (1, 10))
        found = f"{first} of {len(analogies)} capitals first, {ten} among the ten best"
        verdict = HOLDS if first > len(analogies) / 2 else FAILS
        yield Claim("Sec. 3.3", "Analogies: Tunisia, Tunis, Thailand → Bangkok", "first of one asked", found, verdict)


def _text_claims(results: Results) -> Iterator[Claim]:
    pairs = list(results.text_pairs())
    for narrow, wide, rows in pairs:
        printed = _printed(paper.TABLE_5[rows[1]], paper.TABLE_5[rows[0]])
        text = f"On text, {wide} is better than {narrow}, which has its size"
        yield Claim("Table 5", text, printed, *_compare(results, wide, narrow))
    if len(pairs) == 2:
        (small, small_hashed, _), (large, large_hashed, _) = pairs
        smaller = _gain(results, (small_hashed, small), (large_hashed, large), 1)
        text = "The gain is larger for the smaller models"
        yield Claim("Table 5", text, "recall@1 +1.3", f"recall@1 {smaller}", _verdict(smaller))
