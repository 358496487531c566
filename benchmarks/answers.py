"""What do precision and prior do to the answers, and are probabilities what they say?

python -m benchmarks.answers MODEL CORPUS [--rows N]: recall on test rows by precision of the head and with or without
the prior, how much of fp32's top-20 each keeps, and hits against the probabilities of all answers, by tenths of them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from superbloom.corpus.corpus import Corpus
from superbloom.evaluate.held_out import HeldOut
from superbloom.predict import Predictor
from superbloom.store.model_folder import load
from tools.record import report

K = 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("corpus")
    options.add_argument("--rows", type=int)
    given = options.parse_args()
    model, corpus = load(given.model).model, Corpus.open(given.corpus)
    held_out = HeldOut.of(corpus, "test", model.config.seq_len, limit=given.rows)
    targets = torch.from_numpy(held_out.targets)
    rows, figures, reference = [], {}, None
    for precision, prior in (("fp32", True), ("bf16", True), ("int8", True), ("fp32", False)):
        predictor = Predictor(model, precision=precision, prior=prior)
        found = [answers(predictor, ids, places) for ids, places, _ in held_out.parts(64)]
        ids, scores, mass, unscored, scored = (torch.cat(part) for part in zip(*found, strict=True))
        reference = ids if reference is None else reference
        overlap = np.mean([len(set(a) & set(b)) / K for a, b in zip(ids.tolist(), reference.tolist(), strict=True)])
        hits = ids == targets[:, None]
        name = precision if prior else f"{precision} without prior"
        figures[name] = {
            "overlap": float(overlap),
            "same_top_1": (ids[:, 0] == reference[:, 0]).float().mean().item(),
            "recall": {k: hits[:, :k].any(dim=1).float().mean().item() for k in (1, 10, 20)},
            "scored": scored.float().mean().item(),
        }
        recall = [f"{value:.3f}" for value in figures[name]["recall"].values()]
        rows.append(
            [name, f"{overlap:.4f}", f"{figures[name]['same_top_1']:.3f}", *recall, f"{scored.float().mean():,.0f}"]
        )
        if reference is ids:
            share = (scores / predictor.temperature - torch.logaddexp(mass, unscored)[:, None]).exp()
            figures["calibration"] = calibration(share, hits)
    prior = model.prior
    figures["prior"] = None if prior is None else {"weight": prior.weight, "temperature": prior.temperature}
    header = ["head", f"of fp32's top-{K}", "same top-1", "rec@1", "rec@10", "rec@20", "ids scored"]
    report(f"{len(held_out)} test rows, prior and temperature {figures['prior']}", header, rows, figures)


def answers(predictor: Predictor, ids: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # Wide enough that little is left unscored: what is judged is the temperature.
    found = predictor.search(predictor.log_probs(ids, places), K, beam=500, temperature=predictor.temperature)
    assert found.mass is not None
    assert found.unscored is not None
    return found.ids, found.scores, found.mass, found.unscored, found.scored


def calibration(share: torch.Tensor, hits: torch.Tensor) -> list[dict[str, Any]]:
    """Answers in ten groups by their probability: what they claim, and how often they are right."""
    order = share.flatten().argsort()
    return [
        {"claimed": share.flatten()[group].mean().item(), "right": hits.flatten()[group].float().mean().item()}
        for group in order.tensor_split(10)
    ]


if __name__ == "__main__":
    main()
