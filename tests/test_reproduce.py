"""`superbloom reproduce`: the cells, what a killed run keeps, the verdicts, and the whole report on small corpora."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest
from conftest import rings
from launch import OUTPUT, finish, start
from test_fill_in import text_corpus  # noqa: F401 (a fixture)

from superbloom import Superbloom
from superbloom.errors import InputError
from superbloom.reproduce import costs, lab, paper
from superbloom.reproduce.cells import OF_ENTITIES, PAPER, SAMPLERS, Shapes, cells
from superbloom.reproduce.claims import FAILS, HOLDS, UNDECIDED, claims
from superbloom.reproduce.command import in_minutes, reproduce
from superbloom.reproduce.results import Difference, Results


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "rings"
    rings().save(folder)
    return folder


def test_models_that_are_compared_have_one_size():
    corpus = rings()
    shapes, found = Shapes(corpus), {cell.name: cell for cell in cells(corpus)}
    size = {name: shapes.parameters(cell.model) for name, cell in found.items()}
    assert size["baseline"] == pytest.approx(size["superbloom"], rel=0.05)
    assert size["superbloom-wide-l1"] == pytest.approx(size["superbloom-deep"], rel=0.05)
    of_one_size = [size[name] for name, cell in found.items() if "sensitivity" in cell.parts]
    assert max(of_one_size) < 1.1 * min(of_one_size)
    assert size["sampled-softmax, empirical"] > 3 * size["superbloom"]
    assert all(cell.training["samples"] == 5 for name, cell in found.items() if name.startswith("sampled"))  # of 192
    assert {part for cell in found.values() for part in cell.parts} | {"costs"} == set(OF_ENTITIES)
    assert len({cell.file for cell in cells(corpus, seeds=3)}) == len(cells(corpus, seeds=3))


def test_cells_are_of_what_their_names_say():
    found = {cell.name: cell.model for cell in cells(rings())}
    assert found["superbloom-bag"]["attend"] is False
    assert found["hash10-2"]["coherent"] == 2
    assert found["baseline"]["alpha"] == found["baseline"]["num_hashes"] == 1
    assert PAPER.items() <= found["paper: superbloom"].items()
    assert found["superbloom-deep"]["layers"] > found["superbloom-l1"]["layers"] == 1
    assert "α=1, m=1" in found
    assert "α=2, m=1" not in found  # ids that share their only bucket cannot be told apart
    assert "α=50, m=2" not in found  # nor 192 ids by 4 × 4 digests
    assert "α=20, m=3" in found


def test_a_large_catalogue_is_hashed_more(monkeypatch):
    monkeypatch.setattr("superbloom.reproduce.cells.ALPHA_UP_TO", {3: 100, 5: 1_000})
    assert Shapes(rings()).alpha == 5
    assert Shapes(rings(num_rings=2)).alpha == 3
    assert Shapes(rings(num_rings=1)).alpha == 3


@pytest.mark.parametrize(
    ("given", "minutes"),
    [("3h", 180), ("1h30m", 90), ("45m", 45), ("45 min", 45), ("20", 20), ("1.5h", 90), ("2H", 120)],
)
def test_budgets_as_people_write_them(given, minutes):
    assert in_minutes(given) == minutes


@pytest.mark.parametrize("given", ["", "h", "3 days", "-3h", "0", "0h0m", "1e3h", "99999999h", "٣h"])
def test_a_budget_that_is_none_is_refused(given):
    with pytest.raises(InputError, match=re.escape(f"--budget {given!r} given; a time is allowed: 3h")):
        in_minutes(given)


def result(name: str, hits: np.ndarray, seed: int = 0, **more):
    """A cell whose hidden elements are found first where hits says so, else not at all."""
    ranks = np.where(hits, 0, 20).tolist()
    values = {str(k): {"value": float(hits.mean())} for k in (1, 10, 20)}
    deciles = [{"recall_at_1": float(part.mean()), "lowest_frequency": 1} for part in np.array_split(hits, 10)]
    history = [{"seconds": 1.0, "recall_at_10": float(hits.mean())}]
    fixed = {"model": {"alpha": 10, "dim": 8}, "parameters": 1000, "deciles": deciles, "history": history}
    return {"cell": name, "seed": seed, "ranks": ranks, "recall": values, **fixed, **more}


def verdicts(*found) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in claims(Results({}, list(found)))}


@pytest.mark.parametrize(("share", "verdict"), [(0.7, HOLDS), (0.3, FAILS), (0.5, UNDECIDED)])
def test_a_claim_holds_if_the_interval_says_so(share, verdict):
    rng = np.random.default_rng(0)
    base = rng.random(3000) < 0.5
    ours = rng.random(3000) < share
    found = verdicts(result("superbloom", ours), result("baseline", base))
    assert found["A hashed model is more accurate than an unhashed one of its size"] == verdict


def test_a_claim_may_hold_at_some_ranks_only():
    ranks = {"superbloom": np.where(np.arange(100) < 60, 0, 20), "baseline": np.full(100, 5)}
    found = [result(name, rank < 20) | {"ranks": rank.tolist()} for name, rank in ranks.items()]
    verdict = verdicts(*found)["A hashed model is more accurate than an unhashed one of its size"]
    assert verdict == "holds at rec@1 only"


def test_depth_is_judged_by_how_much_more_it_gains():
    rng = np.random.default_rng(0)
    uniform = rng.random(3000)

    def depth(hashed: float, unhashed: float) -> str:
        reached = {"superbloom-deep": hashed, "superbloom-l1": 0.2, "baseline-deep": unhashed, "baseline-l1": 0.2}
        found = [result(name, uniform < share) for name, share in (reached | {"superbloom-wide-l1": 0.2}).items()]
        return verdicts(*found)["Depth gains more when hashed than when not"]

    assert depth(0.5, 0.3) == HOLDS
    assert depth(0.3, 0.5) == FAILS
    assert depth(0.4, 0.4) == UNDECIDED  # both gain the same


def test_the_sampler_is_chosen_on_validation_rows():
    hits = {"log-uniform": 0.2, "empirical": 0.6, "empirical, half the rate": 0.4}
    assert set(hits) == set(SAMPLERS)
    test = np.arange(100) < 50  # the same on test rows
    found = [result(f"sampled-softmax, {name}", test) for name in hits]
    for cell, share in zip(found, hits.values(), strict=True):
        cell["history"] = [{"seconds": 1.0, "recall_at_10": share}]
    assert Results({}, found).sampled == "sampled-softmax, empirical"


def test_seeds_are_averaged_before_models_are_compared():
    one, other = (np.repeat(np.array(hits, bool), 10) for hits in ([1, 1, 0, 0], [1, 0, 1, 0]))
    results = Results({}, [result("a", one), result("a", other, seed=1), result("b", one)])
    assert results.hits("a", 1)[::10].tolist() == [1, 0.5, 0.5, 0]
    assert results.difference("a", "b", 1).value == 0
    assert results.spread("a", 1) == 0.0
    assert results.spread("b", 1) is None
    assert Difference.of(np.ones(9)) == (1.0, 1.0, 1.0)


def test_the_whole_report(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "HIDDEN", 200)
    monkeypatch.setattr(lab, "WATCH", {"valid_rows": 50, "valid_every": 20, "patience": 2})
    monkeypatch.setattr(costs, "LARGER", 500)
    monkeypatch.setattr(costs, "WIKIPEDIA_IDS", 5_000)
    names = tuple(rings().vocab.names(range(8)))
    monkeypatch.setattr(paper, "CONTEXTS", (names[:1], names[:3], ("not there",)))
    monkeypatch.setattr(paper, "CAPITALS", (names[:2], names[2:4], names[4:6]))
    out, said = tmp_path / "report", []
    only = ["table2,figure3", "table6 table7", "costs", "examples"]
    found = reproduce(corpus_folder, out, only=only, budget="0.3m", quiet=True, notice=said.append)
    assert found["done"] == found["cells"] == len([line for line in said if line.startswith("[")]) == 9
    page = (out / "report.md").read_text()
    for part in (
        "Tables 1 and 2",
        "Figure 3",
        "Table 6",
        "Table 7",
        "Sections 2.4",
        "Appendices E",
        "paper: superbloom",
    ):
        assert part in page
    assert "Table 3" not in page
    assert page.count("(certified)") == 2
    assert page.count("](figure3.png)") == 1
    assert (out / "figure3.png").read_bytes()[:4] == b"\x89PNG"
    document = json.loads((out / "results.json").read_text())
    assert {cell["cell"] for cell in document["cells"]} >= {"superbloom", "baseline", "hash10-1", "hash10-2"}
    superbloom = next(cell for cell in document["cells"] if cell["cell"] == "superbloom")
    assert re.fullmatch("[0-9a-k]{200}", superbloom["ranks"])
    assert superbloom["recall"]["1"]["value"] == superbloom["ranks"].count("0") / 200
    assert superbloom["beams"]["certified"]["certified"] == 1.0
    assert [a["asked"] for a in superbloom["analogies"]] == [list(names[:3]), list(names[2:5])]
    for step in document["costs"]["steps"]:
        assert 0 < step["output layer"] < step["step"]
    assert {step["ids"] for step in document["costs"]["steps"]} == {192, 500}
    assert len(Superbloom.from_pretrained(out / "models" / "superbloom-seed0").predict([names[0]], k=3)) == 3
    before = {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    again = reproduce(corpus_folder, out, only=["table7"], quiet=True, notice=said.append)
    assert again["done"] == again["cells"] == 3  # nothing is trained again
    assert before == {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    with pytest.raises(InputError, match=r"begun with --budget 0.3m; leave it out to go on"):
        reproduce(corpus_folder, out, budget="5h")
    rings(seed=1).save(tmp_path / "other")
    with pytest.raises(InputError, match="holds a report on another corpus; choose another --out"):
        reproduce(tmp_path / "other", out)


def test_text_has_its_own_tables(text_corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lab, "HIDDEN", 50)
    monkeypatch.setattr(lab, "WATCH", {"valid_rows": 20, "patience": 1})
    monkeypatch.setattr(paper, "SENTENCES", ("Miles Davis is a [MASK] musician.",))
    text_corpus.save(tmp_path / "text")
    reproduce(tmp_path / "text", tmp_path / "report", budget="0.05m", quiet=True)
    page = (tmp_path / "report" / "report.md").read_text()
    assert "Tables 4 and 5" in page
    assert page.count("Miles Davis is a \\[MASK\\] musician.") == 4
    assert page.count("Of text, hash") == 2
    with pytest.raises(InputError, match=r"--only table3 given, and this is a corpus of text; table5, examples"):
        reproduce(tmp_path / "text", tmp_path / "else", only=["table3"])


def test_a_killed_run_goes_on_where_it_was(corpus_folder, tmp_path):
    command = ("reproduce", corpus_folder, "--out", tmp_path / "report", "--only", "table7", "--budget", "0.2m")
    process = start(tmp_path, *command)
    first = tmp_path / "report" / "cells" / "superbloom-seed0.json"
    while not first.is_file():
        assert process.is_alive(), (tmp_path / OUTPUT).read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    done = first.read_bytes()
    finish(tmp_path, start(tmp_path, *command))
    assert first.read_bytes() == done
    said = (tmp_path / OUTPUT).read_text()
    assert "the report is " in said
    assert "Traceback" not in said
    assert said.count("[1/3] superbloom") == 1
    assert {file.name for file in (tmp_path / "report" / "cells").iterdir()} == {
        "superbloom-seed0.json",
        "hash10-1-seed0.json",
        "hash10-2-seed0.json",
    }
    assert not any((tmp_path / "report" / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["table9"]}, r"--only table9 given; table2, figure3, .* are allowed"),
        ({"only": ["table5"]}, r"--only table5 given, and this is a corpus of names"),
        ({"only": ["table4"]}, r"--only table5 given, and this is a corpus of names"),
        ({"budget": "soon"}, r"--budget 'soon' given"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(corpus_folder, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        reproduce(corpus_folder, tmp_path / "report", **options)
    assert not [file for file in tmp_path.glob("report/*") if not file.name.startswith(".")]


def test_a_folder_of_other_things_is_left_alone(corpus_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"also holds 'notes.txt', no part of a report"):
        reproduce(corpus_folder, tmp_path)
    with pytest.raises(InputError, match="is a file, a corpus or a model folder"):
        reproduce(corpus_folder, corpus_folder)


def test_models_that_do_not_fit_are_left_out(corpus_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("superbloom.memory.machine_memory", lambda: 20_000_000)
    monkeypatch.setattr(lab, "HIDDEN", 50)
    said = []
    found = reproduce(
        corpus_folder, tmp_path / "report", only=["table2"], budget="0.05m", quiet=True, notice=said.append
    )
    assert found["cells"] == found["done"] == 4
    assert len([line for line in said if line.startswith("sampled-softmax")]) == 3
    assert "Left out, too large" in (tmp_path / "report" / "report.md").read_text()
