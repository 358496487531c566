"""Several processes: the same result as one, written once."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from superbloom.config.model import ModelConfig
from superbloom.config.training import TrainConfig
from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.model.model import Model
from superbloom.runtime.ranks import is_main_process
from superbloom.training.callback import TrainingCallback
from superbloom.training.checkpoints import checkpoints, step_of
from superbloom.training.distributed import placement
from superbloom.training.lightning_module import Training
from superbloom.training.logs import LOG_FILE
from tests.support.kills import begin_the_batches_again
from tests.support.launch import finish, start, start_together

pytestmark = pytest.mark.system

COMMAND = ("train", "corpus", "--out", "model", "--valid-every", 20, "--valid-rows", 100, "--save-every", 25)
# Without dropout, which each process draws for itself, and from noise, so that there is something to learn.
SMALL = ("--dim", 32, "--heads", 2, "--ffn-dim", 64, "--dropout", 0, "--no-warm-start")
SMALL += ("--batch-size", 32, "--learning-rate", 0.005, "--warmup", 10)


def log(folder: Path) -> list[list[float]]:
    """Step, loss and recall of every line."""
    lines = [line.split(",") for line in (folder / "model.run" / LOG_FILE).read_text().splitlines()[1:]]
    return [[float(line[i] or 0) for i in (0, 1, 4)] for line in lines]


def assert_same_training(one: Path, other: Path) -> None:
    """Equal but for the order of additions: the same steps, losses, validations and weights."""
    assert torch.allclose(torch.tensor(log(one)), torch.tensor(log(other)), rtol=1e-4)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], atol=5e-3), name
    runs = [sorted(file.name.split("-")[0] for file in (folder / "model.run").iterdir()) for folder in (one, other)]
    assert runs[0] == runs[1], "something was written twice"


@pytest.fixture(scope="module")
def alone(ring_corpus, tmp_path_factory) -> Path:
    """One process, 50 steps."""
    folder = tmp_path_factory.mktemp("alone")
    ring_corpus.save(folder / "corpus")
    finish(folder, start(folder, *COMMAND, *SMALL, "--steps", 50))
    assert log(folder)[-1][0] == 50
    losses = [loss for _, loss, _ in log(folder) if loss]
    assert losses[-1] < 0.98 * losses[0], "it learns, so that there is something to compare"
    return folder


@pytest.fixture
def place(alone, tmp_path) -> Path:
    (tmp_path / "corpus").symlink_to(alone / "corpus")
    return tmp_path


@pytest.mark.parametrize("launcher", [["-m", "superbloom"], ["-m", "torch.distributed.run", "--nproc-per-node", "2"]])
def test_two_processes_train_as_one_does(alone, place, launcher):
    """`--devices 2`, and torchrun, as a user types them."""
    own = launcher[1] == "superbloom"
    command = [*launcher, *(() if own else ("-m", "superbloom")), *COMMAND, *SMALL, "--steps", 50]
    command += ["--devices", 2, "--strategy", "ddp"] if own else []
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=place, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("50 steps in") == 1
    assert_same_training(alone, place)


def test_a_run_changes_its_number_of_processes_and_how_they_share(alone, place):
    """One process, then two with a whole model each, then two with a share each: still the same training."""
    finish(place, start(place, *COMMAND, *SMALL, "--steps", 20))
    finish(place, *start_together(place, 2, *COMMAND, "--steps", 40, "--resume"))
    assert step_of(checkpoints(place / "model.run")[0]) == 40
    finish(place, *start_together(place, 2, *COMMAND, "--steps", 50, "--resume", "--strategy", "fsdp"))
    assert_same_training(alone, place)


@pytest.mark.parametrize("options", [("--no-tied",), ("--num-hashes", 1, "--alpha", 1, "--loss", "sampled")])
def test_embeddings_that_are_only_looked_up_are_trained_alike(ring_corpus, tmp_path, options):
    """Few rows of them have a gradient in a step; which are updated does not depend on the number of processes."""
    folders = [tmp_path / name for name in ("one", "two")]
    for count, folder in enumerate(folders, 1):
        ring_corpus.save(folder / "corpus")
        few = ("--batch-size", 4, "--samples", 20, "--steps", 30, *options)
        finish(folder, *start_together(folder, count, *COMMAND, *SMALL, *few))
    assert_same_training(*folders)


@pytest.mark.parametrize("softmax", ["per-hash", "joint"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_gradient_does_not_depend_on_how_the_batch_is_shared(softmax, ranks):
    """Rows of unequal length, so that parts have unequal numbers of targets and of padding."""
    rng = np.random.default_rng(0)
    corpus = Corpus.from_sequences([[f"name {i}" for i in rng.integers(0, 50, rng.integers(2, 30))] for _ in range(99)])
    torch.manual_seed(0)
    model = Model.create(
        ModelConfig(num_ids=corpus.num_ids, alpha=2, dim=16, softmax=softmax, dropout=0.0), corpus.vocab
    )
    training = Training(model, corpus, TrainConfig(steps=1, batch_size=12))

    def loss_and_gradient(parts: int) -> list[torch.Tensor]:
        model.network.zero_grad()
        losses = [training.objective(training.batches(rank, parts)[3], parts, 0) / parts for rank in range(parts)]
        sum(losses).backward()
        return [sum(losses).detach(), *(parameter.grad.clone() for parameter in model.network.parameters())]

    for ours, theirs in zip(loss_and_gradient(ranks), loss_and_gradient(1), strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def write_shares() -> None:
    """Let training write down, when it starts, how many of the weights and of the gradients this process holds."""
    watched = TrainingCallback.on_train_start

    def on_train_start(self, trainer, training):
        watched(self, trainer, training)
        held = sum(parameter.to_local().numel() for parameter in training.objective.parameters())
        whole = sum(parameter.numel() for parameter in training.objective.parameters())
        Path(f"shares-{trainer.global_rank}.json").write_text(json.dumps([held, whole]))

    TrainingCallback.on_train_start = on_train_start


def test_sharded_training_holds_a_share_of_the_weights_and_ends_in_the_same(alone, place):
    options = (*COMMAND, *SMALL, "--steps", 50, "--strategy", "fsdp")
    finish(place, *start_together(place, 2, *options, before=write_shares))
    assert_same_training(alone, place)
    (one, whole), (other, _) = (json.loads((place / f"shares-{rank}.json").read_text()) for rank in (0, 1))
    assert one + other == whole
    assert one == pytest.approx(whole / 2, rel=0.01)


def two_resume(corpus: Corpus, tmp_path: Path, workers: int, stop: int, before: Callable[[], None] | None) -> bool:
    """Do two processes, stopped at a step, end in the weights of two that were not?"""
    ends = []
    for name in ("straight", "broken"):
        folder = tmp_path / name
        corpus.save(folder / "corpus")
        options = (*COMMAND, *SMALL, "--dropout", 0.1, "--workers", workers)
        if name == "broken":
            finish(folder, *start_together(folder, 2, *options, "--steps", stop))
        finish(folder, *start_together(folder, 2, *options, "--steps", 40, "--resume", before=before))
        ends.append(load_file(folder / "model" / "model.safetensors"))
    return all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [11, 22])
def test_two_processes_resume_bit_for_bit(ring_corpus, tmp_path, workers, stop, check):
    assert two_resume(ring_corpus, tmp_path, workers, stop, None)
    check(13, f"two processes, {workers} workers, stopped at step {stop}: weights bit for bit")


@pytest.mark.slow
def test_two_processes_whose_batches_begin_again_are_noticed(ring_corpus, tmp_path, check):
    assert not two_resume(ring_corpus, tmp_path, 0, 11, begin_the_batches_again)
    check.twin(13, "batches begin again after a resume of two processes", "other weights")


def test_the_environment_tells_how_many_there_are(monkeypatch):
    assert placement(None, "ddp", 32)["devices"] == 1
    assert placement(2, "ddp", 32)["devices"] == 2
    for name, value in (("LOCAL_WORLD_SIZE", 4), ("GROUP_WORLD_SIZE", 2), ("TORCHELASTIC_RUN_ID", "x"), ("RANK", 4)):
        monkeypatch.setenv(name, str(value))
    place = placement(None, "ddp", 32)
    assert (place["devices"], place["num_nodes"]) == (4, 2)
    assert not is_main_process()
    with pytest.raises(InputError, match="devices=2, but 4 processes were started on each machine"):
        placement(2, "ddp", 32)
    with pytest.raises(InputError, match="batch_size=12 does not divide among 8 processes"):
        placement(None, "ddp", 12)


def test_slurm_tells_it_too(monkeypatch):
    for name, value in (("NTASKS", 6), ("NNODES", 3), ("PROCID", 0), ("JOB_NAME", "train"), ("NTASKS_PER_NODE", 2)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    place = placement(None, "fsdp", 12)
    assert (place["devices"], place["num_nodes"]) == (2, 3)
    assert not place["plugins"][0].auto_requeue
    assert is_main_process()
