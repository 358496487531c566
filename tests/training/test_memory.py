"""Out of memory: said before it begins where that can be known, and in one line where it cannot."""

import resource
import sys

import pytest

from superbloom.config.model import ModelConfig
from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.training.limits import check_memory, machine_memory, num_parameters
from tests.support.launch import OUTPUT, start


def test_a_model_that_cannot_fit_is_refused_before_it_is_made():
    huge = ModelConfig(num_ids=10**9, num_hashes=1, alpha=1, dim=1024)
    with pytest.raises(InputError, match=r"1,025,\d.* take 1527\d\.\d GiB .*: raise --alpha or lower --dim"):
        check_memory(huge)
    check_memory(ModelConfig(num_ids=1000))


def test_the_container_counts_too(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("superbloom.training.limits.CGROUP_MEMORY_LIMIT", limit)
    whole = machine_memory()
    assert whole > 2**28
    limit.write_text("max\n")
    assert machine_memory() == whole
    limit.write_text("100000000\n")
    assert machine_memory() == 10**8
    config = ModelConfig(num_ids=1000, dim=512)
    assert 16 * num_parameters(config) < 10**8
    check_memory(config)
    with pytest.raises(InputError, match=r"0\.1 GiB are available"):
        check_memory(ModelConfig(num_ids=100_000, dim=512))


def limit_memory() -> None:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # noqa: PTH123, SIM115
    now = int(status["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + 400 * 2**20, resource.RLIM_INFINITY))


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-size", 20_000), "for the activations of 20000 segments; lower --batch-size, --seq-len, --dim"),
        (("--dim", 9000, "--ffn-dim", 8, "--layers", 1), "for the weights and hash tables; lower --dim or raise"),
        (("--batch-size", 8000, "--logits-mb", 2000, "--dim", 8, "--heads", 1), "for the loss; lower --logits-mb"),
    ],
)
def test_what_was_being_allocated_is_said_and_which_option_lowers_it(tmp_path, options, message):
    Corpus.from_sequences([[f"{row} {i}" for i in range(5)] for row in range(4000)]).save(tmp_path / "corpus")
    unhashed = ("--num-hashes", 1, "--alpha", 1)
    process = start(
        tmp_path, "train", "corpus", "--out", "model", "--steps", 2, *unhashed, *options, before=limit_memory
    )
    process.join(timeout=120)
    output = (tmp_path / OUTPUT).read_text()
    assert process.exitcode == 2, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: out of memory: ")
    assert message in line
    assert "Traceback" not in output
