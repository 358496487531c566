"""`superbloom reproduce --lab`: the cells, the oracle's ranks, the probe, the verdicts, and a whole small report."""

import json

import numpy as np
import pytest
import torch

from superbloom import Superbloom
from superbloom.config import SyntheticOptions
from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.prepare.synthetic import synthetic_corpus
from superbloom.reproduce.claims import FAILS, HOLDS, UNDECIDED
from superbloom.reproduce.laboratory.bench import LabBench
from superbloom.reproduce.laboratory.cells import (
    ALPHA,
    BASE,
    DEEP,
    LAB_PARTS,
    NEGATIVES,
    SIZED,
    TRAINING,
    WIDE,
    WORLDS,
    cell_name,
    lab_cells,
    num_names,
    sampled_name,
)
from superbloom.reproduce.laboratory.findings import Findings, depth_terms, lab_claims, over_seeds, size_terms, verdict
from superbloom.reproduce.laboratory.pictures import pictures
from superbloom.reproduce.laboratory.probe import ceiling, probe
from superbloom.reproduce.laboratory.report import page
from superbloom.reproduce.laboratory.run import reproduce_lab

pytestmark = pytest.mark.system

SMALL = SyntheticOptions(countries=50, lists=20, list_size=4, lists_per_row=1, rows=3000)
ELEMENTS = 400


def test_every_cell_has_a_world_and_a_name_of_its_own():
    found = lab_cells({*LAB_PARTS}, seeds=3)
    assert len({cell.file for cell in found}) == len(found)
    assert {cell.world for cell in found} == {*WORLDS}
    assert {part for cell in found for part in cell.parts} == {*LAB_PARTS}
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)  # one whole grid, then the next seed
    named = {cell.name: cell for cell in found if cell.seed == 0}
    for terms in (depth_terms(), size_terms(), *(size_terms(world) for world in WORLDS)):
        assert all(name in named for name, _ in terms)
    assert all(
        "table2" in named[cell_name(more=sampled_name(share, log_q))].parts for share in NEGATIVES for log_q in (1, 0)
    )
    assert named[cell_name(alpha=ALPHA)].model["layers"] == DEEP


def test_models_of_equal_size_have_equal_size():
    named = {cell.name: cell for cell in lab_cells({*LAB_PARTS}, seeds=1)}
    options = [named[name].model for name in (cell_name(alpha=ALPHA), cell_name(more=f"{SIZED} to α={ALPHA}"))]
    options.append(named[cell_name(alpha=ALPHA, layers=1, more=WIDE)].model)
    corpus = synthetic_corpus(SyntheticOptions(**vars(WORLDS[BASE]) | {"rows": 10}))
    assert corpus.num_ids == num_names(BASE)
    sizes = [sum(p.numel() for p in network(own, corpus).parameters()) for own in options]
    assert max(sizes) < 1.12 * min(sizes)


def network(options, corpus):
    from superbloom.model import Model

    return Model.create(Superbloom(**options).config_for(corpus), corpus.vocab).network


def test_the_oracle_is_asked_for_the_elements_that_models_are_asked_for(tmp_path):
    bench = LabBench.of_world("small", SMALL, tmp_path, 0.01)
    kept = json.loads((tmp_path / "worlds" / "small.json").read_text())
    assert len(kept["ranks"]) == len(kept["kinds"]) == len(bench.held_out(32))
    assert kept["best"]["1"] == pytest.approx(np.mean(np.array(kept["ranks"]) < 1), abs=0.06)
    assert kept["counts"] == bench.corpus.counts()
    before = (tmp_path / "worlds" / "small" / "corpus.json").stat().st_mtime_ns
    LabBench.of_world("small", SMALL, tmp_path, 0.01)
    assert (tmp_path / "worlds" / "small" / "corpus.json").stat().st_mtime_ns == before  # opened, not drawn again
    other = SyntheticOptions(**vars(SMALL) | {"seed": 1})
    assert LabBench.of_world("small", other, tmp_path, 0.01).corpus.info["world"]["seed"] == 1


def test_buckets_hold_back_only_hashed_models(tmp_path):
    bench = LabBench.of_world("small", SMALL, tmp_path, 0.01)
    unhashed, hashed = (BloomHash.random(bench.corpus.num_ids, m, alpha, 0) for m, alpha in ((1, 1), (2, 8)))
    best = bench.best()["recall"]
    assert bench.through_buckets(unhashed) == best
    assert bench.through_buckets(hashed)["10"]["value"] < best["10"]["value"] - 0.01
    bench.probabilities[:] = np.eye(bench.corpus.num_ids)[bench.hidden.targets]  # of one certain name nothing is lost
    assert bench.through_buckets(hashed)["1"]["value"] == 1.0


def test_the_probe_reads_what_is_there(monkeypatch):
    """Unhashed embeddings are read fully; of hashed ones, no more than the most frequent name of each bucket."""
    monkeypatch.setattr("superbloom.reproduce.laboratory.probe.ROWS", 800)
    corpus = synthetic_corpus(SMALL)
    paper = {"inputs": "tokens", "spread": False, "distance": False, "dim": 32, "heads": 2, "layers": 2}
    for alpha in (1, 4):
        hashes = {"alpha": alpha, "num_hashes": 1 if alpha == 1 else 2}
        torch.manual_seed(0)
        fitted = Superbloom(**paper, **hashes).fit(
            corpus, steps=1, warm_start=False, remember="none", valid_rows=20, quiet=True
        )
        read, alone = probe(fitted.model, corpus), ceiling(fitted.model, corpus)["token alone"]
        assert len(read) == 2
        assert alone == pytest.approx(1.0) if alpha == 1 else alone < 0.7
        assert read[0] > 0.97 if alpha == 1 else read[0] == pytest.approx(alone, abs=0.12)
        assert read[0] <= alone + 0.06


def result(name: str, hits: float | np.ndarray, seed: int = 0, **more):
    """A cell that ranks a share of the hidden elements first, or those that are named."""
    found = np.arange(ELEMENTS) < hits * ELEMENTS if isinstance(hits, float) else hits
    ranks = np.where(found, 0, 20).tolist()
    history = [{"step": step, "recall_at_1": 0.1, "recall_at_10": 0.2} for step in (500, 1000)]
    tokens = {"value": float(found.mean())}
    shape = {"model": {"num_hashes": 2, "dim": 32, "layers": 4}, "parameters": 1000, "steps": 1000}
    times = {"seconds": 50.0, "minutes": 1.0, "processor seconds": 40.0}
    return {"cell": name, "seed": seed, "ranks": ranks, "ranks by sum": ranks, "tokens": tokens, "history": history} | (
        shape | times | more
    )


def world(name: str = BASE):
    ranks = np.where(np.arange(ELEMENTS) < 300, 0, 20).tolist()
    counts = {"names": 360, "rows": 100, "ids": 750, "train rows": 85}
    best = {"1": 0.7, "10": 0.9, "20": 0.95}
    more = {"kinds": [0, 1, 2, 1] * (ELEMENTS // 4), "frequency": [*range(ELEMENTS)]}
    return {"world": name, "counts": counts, "best": best, "ranks": ranks, **more}


def depth(hashed: float, seeds: int, noise: float = 0.0):
    """The four cells of the depth claim; depth gains `hashed` when hashed, and nothing when not."""
    found = []
    for seed in range(seeds):
        (a, b), (c, d) = ([cell_name(alpha=alpha, layers=layers) for layers in (1, DEEP)] for alpha in (1, ALPHA))
        shares = ((a, 0.6), (b, 0.6), (c, 0.2), (d, 0.2 + hashed + noise * (seed - 1)))
        found += [result(name, share, seed) for name, share in shares]
    return found


@pytest.mark.parametrize(
    ("hashed", "seeds", "noise", "expected"),
    [(0.3, 1, 0, HOLDS), (0.3, 3, 0.01, HOLDS), (0.1, 3, 0.1, UNDECIDED), (-0.15, 3, 0.01, FAILS)],
)
def test_a_verdict_needs_seeds_that_agree(hashed, seeds, noise, expected):
    findings = Findings({}, depth(hashed, seeds, noise), [world()])
    difference = findings.difference(depth_terms(), 1)
    assert difference is not None
    assert difference.value == pytest.approx(hashed, abs=0.01)
    assert verdict(difference) == expected
    assert next(iter(lab_claims(findings))).verdict == expected


def test_a_difference_needs_all_of_its_cells():
    assert Findings({}, depth(0.3, 1)[:-1], []).difference(depth_terms(), 1) is None
    later = [*depth(0.3, 1)[:-1], result(cell_name(alpha=ALPHA), 0.5, seed=1)]
    assert Findings({}, later, []).difference(depth_terms(), 1) is None  # no seed that all have


def test_intervals_over_seeds_are_students():
    found = over_seeds([0.1, 0.2, 0.3])  # deviation 0.1, error 0.1 / √3, t of two degrees of freedom 4.303
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)


def test_cells_in_our_reading_rank_by_probability():
    name = cell_name(more="our reading")
    findings = Findings({}, [result(name, 1.0) | {"ranks by sum": [20] * ELEMENTS}], [])
    assert findings.hits(name, 0, 1).all()
    assert not Findings({}, [result("x", 1.0) | {"ranks by sum": [20] * ELEMENTS}], []).hits("x", 0, 1).any()


def test_every_table_and_picture_is_drawn():
    """The cells are artificial, with all names and two seeds."""
    rng = np.random.default_rng(0)
    found = []
    for cell in lab_cells({*LAB_PARTS}, seeds=2):
        made = result(cell.name, rng.random(ELEMENTS) < 0.5, cell.seed, model=cell.model)
        made["probe"] = {"read": [0.1] * cell.model["layers"], "token alone": 0.1}
        values = {"recall": {str(k): {"value": 0.5} for k in (1, 10, 20)}}
        found.append(made | {"beams": dict.fromkeys(("1", "10", "20", "100", "certified"), values)})
    findings = Findings({}, found, [world(name) for name in WORLDS])
    drawn = pictures(findings)
    assert len(drawn) == 6
    assert all(image.startswith(b"\x89PNG") for image in drawn.values())
    text = page(findings, {*drawn})
    assert all(text.count(f"]({name})") == 1 for name in drawn)
    assert all(f"## {title}" in text for title in ("Table 2", "Table 3", "Table 6", "Table 7", "Catalogues"))
    assert "| best possible |" in text or "*best possible*" in text
    tables = {claim.where for claim in lab_claims(findings)}
    assert tables == {"Table 2", "Table 3", "Table 6", "Table 7", "Figure 3", "Sec. 1"}
    assert pictures(Findings({}, [], [])) == {}


def test_a_laboratory_trains_resumes_and_reports(tmp_path, monkeypatch):
    monkeypatch.setattr("superbloom.reproduce.laboratory.run.WORLDS", {BASE: SMALL})
    monkeypatch.setattr("superbloom.reproduce.workbench.HIDDEN_ELEMENTS", 200)
    monkeypatch.setattr("superbloom.reproduce.laboratory.probe.ROWS", 200)
    monkeypatch.setitem(TRAINING, "valid_rows", 100)
    wanted = lab_cells({"table6"}, 1)
    assert [cell.name for cell in wanted] == [cell_name(alpha=ALPHA)]
    out, said = tmp_path / "lab", []
    found = reproduce_lab(out, only=["table6"], budget="0.05m", seeds=1, quiet=True, notice=said.append)
    assert found == {"report": str(out / "report.md"), "cells": 1, "done": 1}
    assert [line.split(":")[0] for line in said] == ["the world “base”", f"[1/1] {cell_name(alpha=ALPHA)}"]
    results = json.loads((out / "results.json").read_text())
    (cell,) = results["cells"]
    assert len(cell["ranks"]) == len(results["worlds"][0]["ranks"])
    assert "best possible" in (out / "report.md").read_text()
    again = reproduce_lab(out, only=["table6"], seeds=1, quiet=True, notice=said.append)
    assert again == found
    assert sum(line.startswith("[1/1]") for line in said) == 1  # trained once
    with pytest.raises(InputError, match="begun with --budget 0.05m; leave --budget out"):
        reproduce_lab(out, budget="9h", quiet=True)
    (out / "cells" / f"{wanted[0].file}.json").unlink()
    monkeypatch.setattr(LabBench, "measured", lambda *_: (_ for _ in ()).throw(InputError("the loss became nan")))
    options = {"only": ["table6"], "seeds": 1, "quiet": True, "notice": said.append}
    assert reproduce_lab(out, budget="0.05m", **options)["done"] == 0
    assert said[-1] == f"{cell_name(alpha=ALPHA)} failed and is left out: the loss became nan"


@pytest.mark.parametrize(
    ("only", "message"), [("table5", "--only table5 given with --lab; depth, table2, table3,"), ("x", "--only x given")]
)
def test_parts_that_are_not_of_the_laboratory_are_refused(tmp_path, only, message):
    with pytest.raises(InputError, match=message):
        reproduce_lab(tmp_path / "lab", only=[only])
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("settings.json", '{"corpus": "abc"}', "holds a report on a corpus; choose another --out"),
        ("letters.txt", "dear", "also holds 'letters.txt', no part of a report"),
    ],
)
def test_a_folder_with_something_else_is_refused(tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=message):
        reproduce_lab(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [file]
