"""A run that was stopped and resumed ends as one that never stopped: same weights, same log, bit for bit (check 13)."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.commands.train import train_folder
from superbloom.errors import InputError
from superbloom.training.batches import BatchStream
from superbloom.training.checkpoints import checkpoints, newest_whole, step_of
from superbloom.training.logs import LOG_FILE
from superbloom.training.run_folder import lock_run
from tests.support.kills import COMMAND, begin_the_batches_again, figures, same
from tests.support.launch import OUTPUT, start

pytestmark = pytest.mark.system

SMALL = {"alpha": 2, "dim": 32, "heads": 2, "ffn_dim": 64, "dropout": 0.1}
FAST = {"batch_size": 32, "warmup": 20, "valid_every": 7, "valid_rows": 50, "quiet": True}


def weights(superbloom: Superbloom) -> dict[str, torch.Tensor]:
    return superbloom.model.network.state_dict()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def progress(superbloom: Superbloom) -> list[tuple[float, float]]:
    return [(entry["step"], entry["recall_at_10"]) for entry in superbloom.metrics["history"]]


def resumes(tmp_path: Path, workers: int, stop: int) -> tuple[bool, bool, bool]:
    """Does a run that was stopped twice end as one never stopped: in its weights, its validations, its log?"""
    rows = [[f"name {(row * 7 + i * i) % 60}" for i in range(6)] for row in range(828)]
    corpus = Corpus.from_sequences(rows)
    assert len(corpus.rows("train")) == 22 * 31
    fast = FAST | {"workers": workers, "batch_size": 31, "patience": 0}  # each end is validated, and might be the best
    straight = Superbloom(**SMALL).fit(corpus, steps=30, run=tmp_path / "straight", **fast)
    Superbloom(**SMALL).fit(corpus, steps=stop, run=tmp_path / "broken", **fast)
    # As a kill leaves it: the log is ahead of the checkpoint, and its last line is incomplete.
    with (tmp_path / "broken" / LOG_FILE).open("a") as file:
        file.write(f"{stop + 1},9.9,1,1,,9\n{stop + 2},9.")
    again = {"run": tmp_path / "broken", "resume": True, **fast}
    Superbloom(**SMALL).fit(corpus, steps=stop + 5, **again)
    resumed = Superbloom(**SMALL).fit(corpus, steps=30, **again)
    assert resumed.training["steps"] == 30
    ends = {stop, stop + 5}  # a run that ends here also validates here
    kept = [line for line in figures(tmp_path / "broken") if int(line.split(",")[0].replace("step", "0")) not in ends]
    return (
        same(weights(straight), weights(resumed)),
        [entry for entry in progress(resumed) if entry[0] not in ends] == progress(straight),
        kept == figures(tmp_path / "straight"),
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [11, 22], ids=["middle of an epoch", "end of an epoch"])
def test_a_resumed_run_ends_in_the_weights_and_log_of_one_never_stopped(tmp_path, workers, stop, check):
    assert resumes(tmp_path, workers, stop) == (True, True, True)
    check(13, f"one process, {workers} workers, stopped at step {stop} of 22 an epoch: weights and log bit for bit")


def test_batches_that_begin_again_after_a_resume_are_noticed(tmp_path, monkeypatch, check):
    monkeypatch.setattr(BatchStream, "__init__", BatchStream.__init__)  # put back afterwards
    begin_the_batches_again()
    assert resumes(tmp_path, 0, 11)[0] is False
    check.twin(13, "batches begin again after a resume", "other weights")


def test_the_best_weights_are_kept_with_a_checkpoint(ring_corpus, tmp_path):
    """A run that is killed after its best validation, and resumed, ends in those weights."""
    options = FAST | {
        "valid_every": 5,
        "learning_rate": 0.3,
        "warmup": 10,
        "save_every": 20,
        "run": tmp_path,
        "remember": "none",
    }
    options["remember"] = "none"
    straight = Superbloom(**SMALL).fit(ring_corpus, steps=30, **options)
    assert straight.training["taken"] < 20
    last, before = checkpoints(tmp_path)
    last.unlink()
    assert step_of(before) == 20
    resumed = Superbloom(**SMALL).fit(ring_corpus, steps=30, resume=True, **options)
    assert resumed.training["taken"] == straight.training["taken"]
    assert_equal(weights(straight), weights(resumed))


def test_a_run_that_has_waited_enough_is_over_until_it_may_wait_longer(ring_corpus, tmp_path, capsys):
    options = FAST | {"valid_every": 4, "learning_rate": 0.3, "run": tmp_path, "steps": 100}
    first = Superbloom(**SMALL).fit(ring_corpus, patience=3, **options)
    assert first.training["steps"] < 100
    assert step_of(checkpoints(tmp_path)[0]) == first.training["steps"]  # saved, where it stopped
    again = Superbloom(**SMALL).fit(ring_corpus, patience=3, resume=True, **options)
    assert "3 validations after its best; give more --patience" in capsys.readouterr().err
    assert (again.training["steps"], progress(again)) == (first.training["steps"], progress(first))
    assert_equal(weights(first), weights(again))
    longer = Superbloom(**SMALL).fit(ring_corpus, patience=5, resume=True, **options)
    assert len(progress(longer)) == len(progress(first)) + 2
    straight = Superbloom(**SMALL).fit(ring_corpus, patience=5, **options | {"run": None})
    assert progress(longer) == progress(straight)
    assert_equal(weights(longer), weights(straight))


def test_patience_that_begins_with_a_resume_waits_from_there(ring_corpus, tmp_path):
    options = FAST | {"valid_every": 5, "learning_rate": 0.3, "run": tmp_path}
    Superbloom(**SMALL).fit(ring_corpus, patience=0, steps=20, **options)
    resumed = Superbloom(**SMALL).fit(ring_corpus, patience=3, steps=70, resume=True, **options)
    assert resumed.training["steps"] >= 35
    assert resumed.training["taken"] > 20 or resumed.training["taken"] == resumed.training["steps"]


def test_logs_and_validation_are_kept(ring_corpus, tmp_path):
    superbloom = Superbloom(**SMALL).fit(ring_corpus, steps=60, run=tmp_path, **FAST | {"valid_every": 20})
    assert [step for step, _ in progress(superbloom)] == [20, 40, 60]
    header, *lines = [line.split(",") for line in (tmp_path / LOG_FILE).read_text().splitlines()]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [int(row["step"]) for row in rows if row["loss"]] == [25, 50]
    logged = [(int(row["step"]), float(row["valid_recall_at_10"])) for row in rows if row["valid_recall_at_10"]]
    assert logged == progress(superbloom)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents*"))
    assert [step_of(file) for file in checkpoints(tmp_path)] == [60]


def test_a_learning_rate_given_with_resume_holds(ring_corpus, tmp_path):
    still = FAST | {"average": 0.0}
    first = Superbloom(**SMALL).fit(ring_corpus, steps=10, run=tmp_path, **still)
    resumed = Superbloom(**SMALL).fit(ring_corpus, steps=15, run=tmp_path, resume=True, learning_rate=1e-12, **still)
    assert resumed.training["steps"] == 15
    assert torch.allclose(weights(first)["embedding.weight"], weights(resumed)["embedding.weight"], atol=1e-9)
    assert resumed.training["seconds"] > first.training["seconds"]


@pytest.fixture(scope="module")
def eleven_steps(ring_corpus, tmp_path_factory) -> Path:
    """A run with checkpoints of its steps 8 and 11."""
    folder = tmp_path_factory.mktemp("run")
    Superbloom(**SMALL).fit(ring_corpus, steps=11, run=folder, save_every=4, **FAST)
    return folder


@pytest.fixture(scope="module")
def fourteen_steps(ring_corpus) -> dict[str, torch.Tensor]:
    """The weights after 14 steps without a stop."""
    return weights(Superbloom(**SMALL).fit(ring_corpus, steps=14, **FAST))


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied"])
def test_a_damaged_checkpoint_is_skipped_with_a_message(
    ring_corpus, eleven_steps, fourteen_steps, tmp_path, capsys, harm
):
    shutil.copytree(eleven_steps, tmp_path, dirs_exist_ok=True)
    last, older = checkpoints(tmp_path)
    assert (step_of(last), step_of(older)) == (11, 8)
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes({"cut": content[:-1000], "flipped": content, "emptied": b""}[harm])
    assert newest_whole(tmp_path, lambda _: None) == older
    resumed = Superbloom(**SMALL).fit(ring_corpus, steps=14, run=tmp_path, resume=True, save_every=4, **FAST)
    message = capsys.readouterr().err
    assert f"skipping {last}: it is damaged or was cut off" in message
    assert "resuming from step 8" in message
    assert_equal(fourteen_steps, weights(resumed))
    assert [step_of(file) for file in checkpoints(tmp_path)] == [14, 12]


def test_with_no_whole_checkpoint_it_starts_again(ring_corpus, tmp_path, capsys):
    straight = Superbloom(**SMALL).fit(ring_corpus, steps=3, run=tmp_path, **FAST)
    (only,) = checkpoints(tmp_path)
    only.write_bytes(b"no checkpoint")
    resumed = Superbloom(**SMALL).fit(ring_corpus, steps=3, run=tmp_path, resume=True, **FAST)
    assert f"no checkpoint in {tmp_path}: starting at step 0" in capsys.readouterr().err
    assert_equal(weights(straight), weights(resumed))


def test_a_checkpoint_holds_no_code(ring_corpus, tmp_path):
    """A checkpoint whose sum was made to fit is still read without running what is in it."""
    import hashlib
    import pickle

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harmed"),)

    content = pickle.dumps(Harm())
    (tmp_path / f"step-000000005-{hashlib.sha256(content).hexdigest()[:16]}.ckpt").write_bytes(content)
    with pytest.raises(InputError, match="is not a checkpoint"):
        Superbloom(**SMALL).fit(ring_corpus, steps=9, run=tmp_path, resume=True, **FAST)
    assert not (tmp_path / "harmed").exists()


def with_other_names(corpus: Corpus) -> Corpus:
    names = corpus.vocab.names(range(corpus.num_ids))
    renamed = dict(zip(names, [f"other {name}" for name in names], strict=True))
    return Corpus.from_sequences([[renamed[name] for name in corpus.vocab.names(row)] for row in rows_of(corpus)])


def with_other_rows(corpus: Corpus) -> Corpus:
    rows = [corpus.vocab.names(row) for row in rows_of(corpus)]
    rows[0] = rows[0][::-1]
    return Corpus.from_sequences(rows)


def rows_of(corpus: Corpus):
    return [corpus.row(number) for number in range(len(corpus))]


@pytest.mark.parametrize(
    ("options", "change", "difference"),
    [
        ({"hash_seed": 1}, None, r"hash_seed=0, hash functions=\w{12}…, .*where now hash_seed=1, hash functions="),
        ({"dim": 64}, None, "the run began with dim=32 where now dim=64"),
        ({}, with_other_names, r"the run began with names sha256=\w{12}… where now names sha256="),
        ({}, with_other_rows, r"the run began with rows sha256=\w{12}… where now rows sha256="),
    ],
)
def test_a_changed_model_or_corpus_is_refused_with_the_difference(ring_corpus, tmp_path, options, change, difference):
    Superbloom(**SMALL).fit(ring_corpus, steps=2, run=tmp_path, **FAST)
    before = checkpoints(tmp_path)
    corpus = change(ring_corpus) if change else ring_corpus
    with pytest.raises(InputError, match=difference):
        Superbloom(**SMALL | options).fit(corpus, steps=4, run=tmp_path, resume=True, **FAST)
    assert checkpoints(tmp_path) == before


def test_a_run_folder_with_checkpoints_is_not_used_for_a_new_run(ring_corpus, tmp_path):
    Superbloom(**SMALL).fit(ring_corpus, steps=2, run=tmp_path, **FAST)
    with pytest.raises(InputError, match="holds a run of 2 steps; continue it with resume=True"):
        Superbloom(**SMALL).fit(ring_corpus, steps=4, run=tmp_path, **FAST)


def test_a_run_that_was_killed_before_its_end_was_written_down_validates_all_the_same(ring_corpus, tmp_path):
    """The checkpoint of the last step already has its validation; nothing is done after it."""
    options = {"run": tmp_path, "save_every": 5, **FAST}
    first = Superbloom(**SMALL).fit(ring_corpus, steps=10, **options)
    assert [step for step, _ in progress(first)] == [7, 10]
    again = Superbloom(**SMALL).fit(ring_corpus, steps=10, resume=True, **options)
    assert progress(again) == progress(first)
    assert_equal(weights(first), weights(again))


def test_a_finished_run_does_no_more_steps(ring_corpus, tmp_path, capsys):
    options = {"run": tmp_path, "minutes": 0.01, **FAST}
    first = Superbloom(**SMALL).fit(ring_corpus, **options)
    again = Superbloom(**SMALL).fit(ring_corpus, resume=True, **options)
    assert again.training["steps"] == first.training["steps"]
    assert f"the run has done its {first.training['steps']:,} steps" in capsys.readouterr().err
    assert_equal(weights(first), weights(again))


def test_two_trainings_do_not_share_a_run(ring_corpus, tmp_path):
    with lock_run(tmp_path / "model.run"):
        ring_corpus.save(tmp_path / "corpus")
        process = start(tmp_path, *COMMAND)
        process.join(timeout=60)
        assert process.exitcode == 2
        assert "another process is training in" in (tmp_path / OUTPUT).read_text()
    assert not (tmp_path / "model").exists()


def test_what_is_refused_changes_nothing(ring_corpus, tmp_path):
    ring_corpus.save(tmp_path / "corpus")
    small = {"dim": 32, "heads": 2, "batch_size": 32, "steps": 3}
    train_folder(tmp_path / "corpus", tmp_path / "model", None, False, False, small)
    folder = tmp_path / "model.run"
    before = {file: file.read_bytes() for file in folder.glob("*") if file.is_file()}
    with pytest.raises(InputError, match="batch_size=32 does not divide among 3 processes"):
        train_folder(tmp_path / "corpus", tmp_path / "model", None, True, False, {"devices": 3, "steps": 8})
    with pytest.raises(InputError, match="batch_size=32 does not divide among 3 processes"):
        train_folder(tmp_path / "corpus", tmp_path / "model", None, False, True, small | {"devices": 3})
    with pytest.raises(InputError, match="give one of them"):
        train_folder(tmp_path / "corpus", tmp_path / "model", None, True, True, small)
    assert {file: file.read_bytes() for file in folder.glob("*") if file.is_file()} == before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="also holds 'notes.txt', no part of a run"):
        train_folder(tmp_path / "corpus", tmp_path / "model", None, False, True, small)


def test_divergence_keeps_the_last_good_checkpoint(ring_corpus, tmp_path):
    options = {"run": tmp_path, "save_every": 5, **FAST}
    Superbloom(**SMALL).fit(ring_corpus, steps=10, **options)
    with pytest.raises(InputError, match=r"at step 1\d; lower learning_rate=1e\+30 and continue from the last"):
        Superbloom(**SMALL).fit(ring_corpus, steps=40, resume=True, learning_rate=1e30, **options)
    assert step_of(newest_whole(tmp_path, print)) >= 10
    resumed = Superbloom(**SMALL).fit(ring_corpus, steps=16, resume=True, **options)
    assert all(torch.isfinite(value).all() for value in weights(resumed).values())
