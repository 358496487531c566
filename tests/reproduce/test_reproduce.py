"""`superbloom reproduce`: the cells, resuming a killed run, the verdicts, and whole reports on small corpora."""

import json
import os
import re
import signal
import time

import numpy as np
import pandas as pd
import pytest

from superbloom import Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.reproduce import paper, workbench
from superbloom.reproduce.cells import ENTITY_PARTS, PAPER_OPTIONS, SAMPLERS, Shapes, cells
from superbloom.reproduce.claims import FAILS, HOLDS, UNDECIDED, claims
from superbloom.reproduce.plots import plots
from superbloom.reproduce.report import page
from superbloom.reproduce.results import Difference, Results
from superbloom.reproduce.run import reproduce
from superbloom.reproduce.settings import parse_minutes, settings_for
from superbloom.reproduce.tables import table_2
from tests.support.corpora import rings
from tests.support.launch import OUTPUT, finish, start

pytestmark = pytest.mark.system

SMALL = {
    "cells.Shapes.__call__.__defaults__": (32,),
    "cells.SAMPLED_DIM": 64,
    "settings.MIN_SHARE_MINUTES": 0.002,
    "costs.LARGE_CATALOGUE_IDS": 500,
    "costs.WIKIPEDIA_IDS": 5_000,
}
SMALL |= {"workbench.HIDDEN_ELEMENTS": 50, "workbench.TRAINING_OPTIONS": {"valid_rows": 50, "save_every": 3}}


def shrink(patch: pytest.MonkeyPatch | None = None) -> None:
    """Make models small and training short. Without a patch, the change lasts as long as the process."""
    for name, value in SMALL.items():
        (patch or pytest.MonkeyPatch()).setattr(f"superbloom.reproduce.{name}", value)


@pytest.fixture
def small(monkeypatch) -> None:
    shrink(monkeypatch)


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
    assert {part for cell in found.values() for part in cell.parts} | {"costs"} == set(ENTITY_PARTS)
    assert len({cell.file for cell in cells(corpus, seeds=3)}) == len(cells(corpus, seeds=3))


def test_cells_have_the_options_that_their_names_say():
    found = {cell.name: cell.model for cell in cells(rings())}
    assert found["superbloom-bag"]["attend"] is False
    assert found["hash10-2"]["coherent"] == 2
    assert found["baseline"]["alpha"] == found["baseline"]["num_hashes"] == 1
    assert PAPER_OPTIONS.items() <= found["paper: superbloom"].items()
    assert found["superbloom-deep"]["layers"] > found["superbloom-l1"]["layers"] == 1
    assert "α=1, m=1" in found
    assert "α=2, m=1" not in found  # a model cannot distinguish ids that share their only bucket
    assert "α=50, m=2" not in found  # 4 × 4 digests cannot distinguish 192 ids
    assert "α=20, m=3" in found


def test_a_large_catalogue_is_hashed_more(monkeypatch):
    monkeypatch.setattr("superbloom.reproduce.cells.MAX_IDS_BY_ALPHA", {3: 100, 5: 1_000})
    assert Shapes(rings()).alpha == 5
    assert Shapes(rings(num_rings=2)).alpha == 3
    assert Shapes(rings(num_rings=1)).alpha == 3


@pytest.mark.parametrize(
    ("given", "minutes"),
    [("3h", 180), ("1h30m", 90), ("45m", 45), ("45 min", 45), ("20", 20), ("1.5h", 90), ("2H", 120)],
)
def test_budgets_as_people_write_them(given, minutes):
    assert parse_minutes(given) == minutes


@pytest.mark.parametrize("given", ["", "h", "3 days", "-3h", "0", "0h0m", "1e3h", "99999999h", "٣h"])
def test_a_budget_that_is_no_time_is_refused(given):
    with pytest.raises(InputError, match=re.escape(f"--budget {given!r} given; a time is allowed: 3h")):
        parse_minutes(given)


def result(name: str, hits: np.ndarray, seed: int = 0, **more):
    """A cell that ranks hidden elements first where hits is true, and does not find the others."""
    ranks = np.where(hits, 0, 20).tolist()
    values = {str(k): {"value": float(hits.mean())} for k in (1, 10, 20)}
    deciles = [{"recall_at_1": float(part.mean()), "lowest_frequency": 1} for part in np.array_split(hits, 10)]
    history = [{"seconds": 1.0, "recall_at_10": float(hits.mean())}]
    fixed = {"model": {"alpha": 10, "dim": 8}, "parameters": 1000, "deciles": deciles, "history": history}
    measured = {"ranks": ranks, "ranks by sum": ranks, "recall": values, "tokens": values["1"]}
    return {"cell": name, "seed": seed, "steps": 10, "seconds": 1.0, **measured, **fixed, **more}


def verdicts(*found, rows: int = 10**6, **beside) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in claims(Results({}, list(found), rows, **beside))}


SIZE = "A hashed model is more accurate than an unhashed one of its size"


@pytest.mark.parametrize(("share", "verdict"), [(0.7, HOLDS), (0.3, FAILS), (0.5, UNDECIDED)])
def test_a_claim_holds_if_the_interval_says_so(share, verdict):
    rng = np.random.default_rng(0)
    base = rng.random(3000) < 0.5
    ours = rng.random(3000) < share
    found = verdicts(result("superbloom", ours), result("baseline", base))
    assert found[SIZE] == verdict


def test_a_claim_may_hold_at_some_ranks_only():
    ranks = {"superbloom": np.where(np.arange(100) < 60, 0, 20), "baseline": np.full(100, 5)}
    found = [result(name, rank < 20) | {"ranks": rank.tolist()} for name, rank in ranks.items()]
    assert verdicts(*found)[SIZE] == "holds at recall@1; does not hold at recall@10 and recall@20"


def test_elements_of_one_row_count_as_one_observation():
    rng = np.random.default_rng(0)
    of_rows = rng.random(12) < 0.75  # 12 rows, each with 250 hidden elements
    ours, base = np.tile(of_rows, 250), np.tile(rng.random(12) < 0.5, 250)
    found = (result("superbloom", ours), result("baseline", base))
    assert verdicts(*found, rows=3000)[SIZE] == HOLDS
    assert verdicts(*found, rows=12)[SIZE] == UNDECIDED
    wide, narrow = (Results({}, list(found), rows).recall("superbloom", 1) for rows in (12, 3000))
    assert wide["high"] - wide["low"] > 8 * (narrow["high"] - narrow["low"])
    assert wide["value"] == pytest.approx(narrow["value"]) == of_rows.mean()


@pytest.mark.parametrize(("ahead", "verdict"), [(10, HOLDS), (5, UNDECIDED), (-1, FAILS)])
def test_every_tenth_of_the_labels_has_to_be_ahead(ahead, verdict):
    rng = np.random.default_rng(0)
    base = rng.random(3000) < 0.5
    tenth = np.arange(3000) // 300
    better, worse = base | (rng.random(3000) < 0.3), base & (rng.random(3000) < 0.7)
    ours = np.where(tenth < ahead, better, base) if ahead >= 0 else np.where(tenth == 4, worse, better)
    yardsticks = {"recall": {}, "share of links": {"100": 0.1, "tenth": 0.5}, "frequency": (9 - tenth).tolist()}
    found = verdicts(result("superbloom", ours), result("baseline", base), yardsticks=yardsticks)
    assert found["It is more accurate at recall@1 in every tenth of the labels by frequency"] == verdict


@pytest.mark.parametrize(("hardest", "verdict"), [(1, HOLDS), (9, FAILS), (None, UNDECIDED)])
def test_the_hardest_tenth_has_to_be_clearly_so(hardest, verdict):
    tenth = np.arange(3000) // 300
    ours = np.random.default_rng(0).random(3000) < np.where(tenth == hardest, 0.1, 0.5)
    yardsticks = {"recall": {}, "share of links": {"100": 0.1, "tenth": 0.5}, "frequency": (9 - tenth).tolist()}
    found = verdicts(result("superbloom", ours), result("baseline", ours), yardsticks=yardsticks)
    assert found["The hardest labels are in the second and third tenth, not among the rarest"] == verdict


def test_cells_as_in_the_paper_rank_by_the_sum():
    ones, zeros = np.ones(50, bool), np.zeros(50, bool)
    by_sum = {"ranks by sum": [20] * 50}
    results = Results({}, [result("superbloom", ones, **by_sum), result("paper: superbloom", ones, **by_sum)], 50)
    assert results.hits("superbloom", 1).all()
    assert not results.hits("superbloom, by the sum", 1).any()
    assert results.hits("paper: superbloom", 1).tolist() == zeros.tolist()
    assert results.hits("paper: superbloom, by probability", 1).all()


def test_table_2_has_a_row_for_each_score():
    found = [result(name, np.ones(50, bool)) for name in ("superbloom", "paper: superbloom")]
    *_, table = table_2(Results({}, found, 50), set())
    rows = ["superbloom", "superbloom, by the sum", "paper: superbloom", "paper: superbloom, by probability"]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == rows


@pytest.mark.parametrize(
    ("steps", "verdict"), [((800.0, 1000.0, 200.0), HOLDS), ((300.0, 1000.0, 2000.0), FAILS)], ids=["holds", "does not"]
)
def test_costs_are_judged_at_the_largest_catalogue(steps, verdict):
    output, unhashed, hashed = steps
    rows = [
        {"ids": ids, "model": model, "output layer": output, "step": step, "parameters": 1}
        for ids in (100, 1000)
        for model, step in (("unhashed", unhashed), ("superbloom", hashed))
    ]
    times = {"exhaustive": 50.0, "approximate": 50 / 20 if verdict == HOLDS else 40.0, "certified": 5.0}
    found = verdicts(costs={"steps": rows, "queries": [{"ids": 10, "alpha": 5, **times}]})
    assert found == dict.fromkeys(found, verdict)
    assert len(found) == 3
    assert not verdicts(costs={"steps": [], "queries": []})  # nothing fitted into memory


def test_a_beam_that_loses_is_noticed():
    def beams(found_by_ten: float):
        values = {"1": 0.5, "10": found_by_ten, "20": 0.6, "100": 0.6, "certified": 0.6}
        return {
            beam: {"recall": {str(k): {"value": 0.5 if k == 1 else value} for k in (1, 10, 20)}, "certified": 1.0}
            for beam, value in values.items()
        }

    text = "A beam of B = k is enough: what B = 100 adds to it"
    assert verdicts(result("superbloom", np.ones(10, bool), beams=beams(0.598)))[text] == HOLDS
    assert verdicts(result("superbloom", np.ones(10, bool), beams=beams(0.58)))[text] == FAILS


def test_every_table_and_picture_is_drawn():
    """The cells are artificial, with all names that a corpus gives and two seeds."""
    rng = np.random.default_rng(0)
    found = []
    for cell in cells(rings(), seeds=2):
        made = result(cell.name, rng.random(200) < 0.5, seed=cell.seed, parameters=123)
        found.append(made | {"model": cell.model, "hidden": 200, "processor seconds": 1.0})
    settings = {"name": "a <b>", "counts": {"names": 192}, "threads": 1, "minutes of a share": 1.0}
    results = Results(settings, found, rows=80)
    pictures = plots(results)
    assert set(pictures) == {"figure3.png", "curves.png", "depth.png", "sensitivity.png"}
    assert all(picture[:4] == b"\x89PNG" for picture in pictures.values())
    text = page(results, set(pictures))
    assert "# The paper's experiments on a &#60;b&#62;\n" in text
    for part in ("## Tables 1 and 2", "## Figure 3", "## Table 3", "## Table 7", "## Sensitivity"):
        assert part in text
    assert text.count("| superbloom-set-l1 |") == 1
    assert len(re.findall(r"\| ± [\d.]+ \(2\) \|", text)) == 22
    assert len(re.findall(r"^\| \d+ \| [1-4] \| \d+ \| 123 \|", text, re.MULTILINE)) == 16  # of α and m


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
    assert Results({}, found, 100).sampled == "sampled-softmax, empirical"


def test_seeds_are_averaged_before_models_are_compared():
    one, other = (np.repeat(np.array(hits, bool), 10) for hits in ([1, 1, 0, 0], [1, 0, 1, 0]))
    results = Results({}, [result("a", one), result("a", other, seed=1), result("b", one)], 40)
    assert results.hits("a", 1)[::10].tolist() == [1, 0.5, 0.5, 0]
    assert results.difference("a", "b", 1).value == 0
    assert results.spread("a", 1) == 0.0
    assert results.spread("b", 1) is None
    assert Difference.of(np.ones(9), np.arange(9)) == (1.0, 1.0, 1.0)
    of_seeds = [cell.model.get("hash_seed", 0) for cell in cells(rings(), seeds=2) if cell.name == "superbloom"]
    assert of_seeds == [0, 1]  # another hash seed puts other names into a bucket


def test_the_whole_report(corpus_folder, tmp_path, monkeypatch, small):
    monkeypatch.setattr(workbench, "HIDDEN_ELEMENTS", 200)
    names = tuple(rings().vocab.names(range(8)))
    monkeypatch.setattr(paper, "CONTEXTS", (names[:1], names[:3], ("not there",)))
    monkeypatch.setattr(paper, "CAPITALS", (names[:2], names[2:4], names[4:6]))
    out, said = tmp_path / "report", []
    only = ["table2,figure3", "table6 table7", "costs", "examples"]
    found = reproduce(corpus_folder, out, only=only, budget="0.03m", quiet=True, notice=said.append)
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
    assert superbloom["beams"]["certified, by probability"]["recall"] == superbloom["recall"]
    assert [a["asked"] for a in superbloom["analogies"]] == [list(names[:3]), list(names[2:5])]
    for step in document["costs"]["steps"]:
        assert 0 < step["output layer"] < step["step"]
    assert {step["ids"] for step in document["costs"]["steps"]} == {192, 500}
    assert len(Superbloom.from_pretrained(out / "models" / "superbloom-seed0").predict([names[0]], k=3)) == 3
    before = {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    again = reproduce(corpus_folder, out, only=["table7"], quiet=True, notice=said.append)
    assert again["done"] == again["cells"] == 3  # nothing is trained again
    assert before == {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    # as another release may have written it
    (out / "cells" / "hash10-1-seed0.json").write_text(json.dumps({"model": {"alpha": 3}}))
    again = reproduce(corpus_folder, out, only=["table7"], quiet=True)
    assert json.loads((out / "cells" / "hash10-1-seed0.json").read_text())["model"]["coherent"] == 1
    with pytest.raises(InputError, match=r"begun with --budget 0.03m; leave --budget out to resume"):
        reproduce(corpus_folder, out, budget="5h")
    rings(seed=1).save(tmp_path / "other")
    with pytest.raises(InputError, match="holds a report on another corpus; choose another --out"):
        reproduce(tmp_path / "other", out)


def test_text_has_its_own_tables(text_corpus, tmp_path, monkeypatch, small):
    monkeypatch.setattr(paper, "SENTENCES", ("Miles Davis is a [MASK] musician.",))
    text_corpus.save(tmp_path / "text")
    reproduce(tmp_path / "text", tmp_path / "report", budget="0.01m", quiet=True)
    page = (tmp_path / "report" / "report.md").read_text()
    assert "Tables 4 and 5" in page
    assert page.count("**Miles Davis is a ") == 4
    assert page.count("On text, hash") == 2
    with pytest.raises(InputError, match=r"--only table3 given, and this is a corpus of text; table5, examples"):
        reproduce(tmp_path / "text", tmp_path / "else", only=["table3"])


def test_a_killed_run_resumes(corpus_folder, tmp_path):
    command = ("reproduce", corpus_folder, "--out", tmp_path / "report", "--only", "table7", "--budget", "0.05m")
    process = start(tmp_path, *command, before=shrink)
    first = tmp_path / "report" / "cells" / "superbloom-seed0.json"
    second = tmp_path / "report" / "runs" / "hash10-1-seed0"
    deadline = time.monotonic() + 300
    while not list(second.glob("*.ckpt")):  # in the middle of the second
        assert process.is_alive(), (tmp_path / OUTPUT).read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    done = first.read_bytes()
    (tmp_path / "report" / "runs" / "superbloom-seed0").mkdir(exist_ok=True)  # as if killed before removing it
    finish(tmp_path, start(tmp_path, *command, before=shrink))
    assert first.read_bytes() == done
    said = (tmp_path / OUTPUT).read_text()
    assert "the report is " in said
    assert said.count("[2/3] hash10-1") == 2
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
def test_wrong_options_are_refused_and_leave_no_files(corpus_folder, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        reproduce(corpus_folder, tmp_path / "report", **options)
    assert not [file for file in tmp_path.glob("report/*") if not file.name.startswith(".")]


def test_measurements_of_another_corpus_are_deleted(corpus_folder, tmp_path):
    """Before the first model is trained, a report may start again, even on another corpus."""
    one, other = Corpus.open(corpus_folder), rings(seed=1)
    first = settings_for(corpus_folder, one, tmp_path, None, 1)
    files = {name: tmp_path / f"{name}.json" for name in ("settings", "yardsticks", "costs")}
    for same, corpus in ((True, one), (False, other)):
        for file in files.values():
            file.write_text(json.dumps(first))
        assert settings_for(corpus_folder, corpus, tmp_path, None, 1)["corpus"] == corpus.fingerprint()
        assert {name: file.exists() for name, file in files.items()} == {
            "settings": False,
            "yardsticks": same,
            "costs": same,
        }


def test_a_folder_of_other_things_is_left_alone(corpus_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"also holds 'notes.txt', no part of a report"):
        reproduce(corpus_folder, tmp_path)
    with pytest.raises(InputError, match="is a file, a corpus or a model folder"):
        reproduce(corpus_folder, corpus_folder)


def test_models_that_do_not_fit_are_left_out(corpus_folder, tmp_path, monkeypatch, small):
    monkeypatch.setattr("superbloom.training.limits.machine_memory", lambda: 1_000_000)
    said = []
    found = reproduce(
        corpus_folder, tmp_path / "report", only=["table2"], budget="0.01m", quiet=True, notice=said.append
    )
    assert found["cells"] == found["done"] == 4
    assert len([line for line in said if line.startswith("sampled-softmax")]) == 3
    assert "Left out, too large" in (tmp_path / "report" / "report.md").read_text()


def test_a_cell_that_fails_is_left_out_and_the_others_are_trained(corpus_folder, tmp_path, monkeypatch, small):
    said, run = [], workbench.Workbench._run

    def fail(self, cell, *given):
        if cell.name == "hash10-1":
            raise InputError("the loss became nan")
        run(self, cell, *given)

    monkeypatch.setattr(workbench.Workbench, "_run", fail)
    out = tmp_path / "report"
    found = reproduce(corpus_folder, out, only=["table7"], budget="0.01m", quiet=True, notice=said.append)
    assert (found["done"], found["cells"]) == (2, 3)
    assert "hash10-1 failed and is left out: the loss became nan" in said
    monkeypatch.setattr(workbench.Workbench, "_run", run)
    assert reproduce(corpus_folder, out, only=["table7"], quiet=True)["done"] == 3


def test_a_checkpoint_that_does_not_fit_is_deleted_and_training_restarts(corpus_folder, tmp_path, monkeypatch, small):
    out = tmp_path / "report"
    measured = workbench.Workbench.measured
    monkeypatch.setattr(workbench.Workbench, "measured", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reproduce(corpus_folder, out, only=["table6"], budget="0.01m", quiet=True)
    monkeypatch.setattr(workbench.Workbench, "measured", measured)
    assert list((out / "runs" / "superbloom-seed0").glob("*.ckpt"))
    monkeypatch.setattr(Shapes.__call__, "__defaults__", (64,))  # another release has other sizes
    assert reproduce(corpus_folder, out, only=["table6"], quiet=True)["done"] == 1


def test_a_budget_is_fixed_by_the_first_call_that_trains(corpus_folder, tmp_path, small):
    out = tmp_path / "report"
    reproduce(corpus_folder, out, only=["costs"], budget="9h", quiet=True)
    reproduce(corpus_folder, out, only=["table6"], budget="0.01m", quiet=True)
    assert json.loads((out / "settings.json").read_text())["minutes of a share"] < 0.1


def test_a_corpus_without_validation_rows_has_a_report(tmp_path, small):
    rows = [[f"name {i % 20}", f"name {i % 7}", f"name {i % 3}"] for i in range(40)]
    corpus = Corpus.from_sequences(rows)
    assert not len(corpus.rows("valid"))
    corpus.save(tmp_path / "corpus")
    found = reproduce(tmp_path / "corpus", tmp_path / "report", only=["table2"], budget="0.01m", quiet=True)
    assert found["done"] == found["cells"]


@pytest.mark.parametrize("kind", ["targets", "cuts"])
def test_other_kinds_of_corpora_have_a_report(tmp_path, kind, small):
    rng = np.random.default_rng(0)
    rows = [[f"item {i}" for i in rng.integers(0, 30, 8)] for _ in range(120)]
    if kind == "targets":
        corpus = Corpus.from_sequences(
            rows, targets=[[f"{name} of {number % 3}" for name in row] for number, row in enumerate(rows)]
        )
    else:
        events = [(number, name, place) for number, row in enumerate(rows) for place, name in enumerate(row)]
        frame = pd.DataFrame(events, columns=["user", "item", "time"])
        corpus = Corpus.from_interactions(frame, user="user", item="item", time="time")
    corpus.save(tmp_path / "corpus")
    only = ["table6", "costs"]
    found = reproduce(tmp_path / "corpus", tmp_path / "report", only=only, budget="0.01m", quiet=True)
    assert found["done"] == 1
