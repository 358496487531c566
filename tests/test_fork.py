"""A loaded model in forked processes: it answers as it does at home."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import serving
from launch import python

from superbloom import Client, InputError, Superbloom, store
from superbloom.vocab import Vocab

NAMES = 40_000  # enough that torch computes an answer with several threads
ASKED = ["name 7", "name 11"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model folder."""
    path = tmp_path_factory.mktemp("fork") / "model"
    vocab = Vocab.from_counts({f"name {number}": NAMES - number for number in range(NAMES)})
    store.save(serving.sure(vocab, alpha=2), path, training={"steps": 3}, metrics={"history": []})
    return path


# In the parent, torch computes with two threads; then a function answers in forked processes.
PARENT = """
import multiprocessing, os, sys, threading, time
import torch
from superbloom import Superbloom

SECONDS = 60  # without an answer for so long, a child hangs

def child_says(function):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(function()))
    child.start()
    said = receiver.recv() if receiver.poll(SECONDS) else "nothing: it hangs"
    child.kill()
    child.join()
    return said

torch.set_num_threads(2)
"""


def parent(code: str, *arguments: object, **options: object) -> str:
    """What a script prints that begins as above."""
    done = python(PARENT + code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_forked_child_answers_as_its_parent(folder, precision):
    code = """
from superbloom import Predictor, store
predictor = Predictor(store.load(sys.argv[1]).model, precision=sys.argv[2])
context = ["name 7", "name 11"]
expected = [found.name for found in predictor.predict(context)[0]]
threads = len(os.listdir("/proc/self/task"))
child = child_says(lambda: [found.name for found in predictor.predict(context)[0]])
print(threads > 1, child == expected, child)
"""
    assert parent(code, folder, precision).startswith("True True ")


@pytest.mark.system
def test_a_child_searches_and_trains_with_one_thread(ring_corpus, tmp_path):
    ring_corpus.save(tmp_path / "corpus")
    code = """
from superbloom import BloomHash, Corpus, top_k
bloom = BloomHash.random(num_ids=200_000, num_hashes=2, alpha=20)
log_probs = torch.randn(8, 2, 10_000).log_softmax(-1)
expected = top_k(log_probs, bloom, k=3).ids.tolist()
print(child_says(lambda: top_k(log_probs, bloom, k=3).ids.tolist()) == expected)
print(child_says(torch.get_num_threads), torch.get_num_threads())
corpus = Corpus.open(sys.argv[1])
options = {"alpha": 2, "dim": 16, "ffn_dim": 16}
print(child_says(lambda: Superbloom(**options).fit(corpus, steps=2, quiet=True).training["steps"]))
"""
    assert parent(code, tmp_path / "corpus").split() == ["True", "1", "2", "2"]


@pytest.mark.system
def test_a_child_reads_text_that_another_thread_was_reading_at_the_fork(tmp_path):
    store.save(serving.sure(serving.text_vocab(), alpha=2, seq_len=16), tmp_path / "text", training={}, metrics={})
    code = """
from superbloom.text import Segmenter
model = Superbloom.from_pretrained(sys.argv[1])
def answers():
    return [found.name for found in model.predict("davis plays [MASK]")[0]]

expected = answers()
began, read = threading.Event(), Segmenter.segment

def slowly(segmenter, text):
    began.set()
    time.sleep(0.3)
    return read(segmenter, text)

Segmenter.segment = slowly
threading.Thread(target=answers).start()
began.wait()
print(child_says(answers) == expected)
"""
    assert parent(code, tmp_path / "text") == "True\n"


@pytest.mark.system
def test_gunicorn_may_load_a_model_once_for_all_workers(folder, tmp_path):
    pytest.importorskip("gunicorn")
    (tmp_path / "served.py").write_text(
        f"""
import torch
torch.set_num_threads(2)
from superbloom import Superbloom
from superbloom.serve.app import make_app
model = Superbloom.from_pretrained({str(folder)!r})
model.predict({ASKED!r})
app = make_app(model.predictor)
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "gunicorn", "served:app", "--preload", "--workers", "2", "--bind", address]
    command += ["--worker-class", "uvicorn_worker.UvicornWorker"]
    with (tmp_path / "log.txt").open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    expected = [
        (found.name, pytest.approx(found.score, abs=1e-4))
        for found in Superbloom.from_pretrained(folder).predict(ASKED)
    ]
    try:
        client = Client(f"http://{address}")
        deadline = time.monotonic() + 60
        while True:
            try:
                answers = [client.predict(ASKED) for _ in range(8)]
                break
            except InputError:
                assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
                assert server.poll() is None, (tmp_path / "log.txt").read_text()
                time.sleep(0.2)
        for answer in answers:
            assert [(found.name, found.score) for found in answer] == expected
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert (tmp_path / "log.txt").read_text().count("Booting worker") == 2


@pytest.mark.system
def test_importing_the_package_or_its_client_does_not_load_torch():
    code = "import sys, superbloom, superbloom.cli; superbloom.Client; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
