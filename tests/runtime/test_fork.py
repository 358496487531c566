"""A loaded model that is forked, pickled or copied answers as in the process that loaded it."""

import copy
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from superbloom import Client, Corpus, InputError, Superbloom, api
from superbloom.corpus.vocab import Vocab
from superbloom.errors import UnknownNameError
from superbloom.predict import Predictor
from superbloom.store import model_folder as store
from tests.support import serving
from tests.support.launch import python

original = store.load
NAMES = 40_000  # enough that torch computes an answer with several threads
ASKED = ["name 7", "name 11"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model folder."""
    path = tmp_path_factory.mktemp("fork") / "model"
    vocab = Vocab.from_counts({f"name {number}": NAMES - number for number in range(NAMES)})
    store.save(serving.sure(vocab, alpha=2), path, training={"steps": 3}, metrics={"history": []})
    return path


@pytest.fixture
def loaded(folder) -> Superbloom:
    return Superbloom.from_pretrained(folder)


# torch computes with two threads in the parent; then a forked child calls a function.
PARENT = """
import multiprocessing, os, sys, threading, time
import torch
from superbloom import Superbloom

SECONDS = 60  # a child without an answer after this time hangs

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
    """Run PARENT and more code in a process; return what it prints."""
    done = python(PARENT + code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_forked_child_answers_as_its_parent(folder, precision):
    code = """
from superbloom import Predictor
from superbloom import store
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
from superbloom.corpus import Segmenter
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
def test_a_model_is_an_argument_of_a_pool(folder):
    code = """
model = Superbloom.from_pretrained(sys.argv[1])
asked = [(model, [name], 3) for name in ("name 7", "name 11", "name 13")]
expected = [Superbloom.predict(*one) for one in asked]
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.starmap_async(Superbloom.predict, asked).get(SECONDS) == expected)
    print(pool.map_async(model.predict, [context for _, context, _ in asked]).get(SECONDS)[0][:3] == expected[0])
    try:
        pool.apply_async(model.predict, (["name 1x"],)).get(SECONDS)
    except Exception as error:
        print(type(error).__name__, error)
"""
    lines = parent(code, folder).splitlines()
    assert lines[:2] == ["True", "True"]
    assert lines[2].startswith("UnknownNameError 'name 1x' is not among the 40,000 names; did you mean 'name 1")


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


def test_the_pickle_of_a_loaded_model_is_a_reference(loaded, folder):
    data = pickle.dumps(loaded)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert again.predict(ASKED) == loaded.predict(ASKED)
    assert (again.options, again.training, again.metrics) == (loaded.options, loaded.training, loaded.metrics)
    assert len(pickle.dumps(again)) < 1000


def test_a_reference_is_found_from_another_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    data = pickle.dumps(Superbloom.from_pretrained(folder.name))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(data).predict(ASKED) == Superbloom.from_pretrained(folder).predict(ASKED)


def test_a_reference_carries_what_was_measured_since(loaded):
    rows = [[f"name {number}" for number in range(start, start + 3)] for start in range(60)]
    figures = loaded.evaluate(Corpus.from_sequences(rows), split="train", rows=4, yardsticks=False)
    again = pickle.loads(pickle.dumps(loaded))
    assert again.metrics == {"history": [], "train": figures}


def test_a_model_whose_folder_was_written_again_is_pickled_whole(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    model = Superbloom.from_pretrained(tmp_path / "model")
    model.metrics["test"] = {"recall": {}}
    model.save_pretrained(tmp_path / "model")
    data = pickle.dumps(model)
    assert len(data) > 1000
    shutil.rmtree(tmp_path / "model")
    again = pickle.loads(data)
    assert again.predict(ASKED) == model.predict(ASKED)
    assert again.metrics == model.metrics


class Named(Superbloom):
    """A class that a user may derive."""

    label = ""


def test_a_reference_carries_what_a_subclass_adds_and_how_it_was_loaded(folder, monkeypatch):
    model = Named.from_pretrained(folder, copy=True)
    model.label = "mine"
    data = pickle.dumps(model)
    copied = []
    monkeypatch.setattr(api, "load", lambda *given, **how: copied.append(how["copy"]) or original(*given, **how))
    again = pickle.loads(data)
    assert (type(again), again.label, copied) == (Named, "mine", [True])


def test_a_process_opens_a_folder_once_for_all_references(loaded, monkeypatch):
    data = pickle.dumps(loaded)
    first = pickle.loads(data)
    monkeypatch.setattr(api, "load", None)  # a call would fail
    second = pickle.loads(data)
    assert second.model is first.model
    second.extend(["name 7b"])
    assert len(first.model.vocab) == NAMES


def test_a_deep_copy_may_hold_itself(loaded):
    loaded.me = loaded
    twin = copy.deepcopy(loaded)
    assert twin.me is twin


def test_a_folder_that_holds_another_model_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    data = pickle.dumps(Superbloom.from_pretrained(tmp_path / "model"))
    Superbloom.from_pretrained(tmp_path / "model").extend(["a new name"]).save_pretrained(tmp_path / "model")
    with pytest.raises(
        InputError, match="/model holds another model than when it was pickled; load and pickle it again"
    ):
        pickle.loads(data)


def test_a_folder_that_is_gone_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    data = pickle.dumps(Superbloom.from_pretrained(tmp_path / "model"))
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(InputError) as error:
        pickle.loads(data)
    reason = f"a model folder holds config.json; {tmp_path / 'model'} does not exist"
    assert str(error.value) == f"the pickle of a model refers to its folder: {reason}; put it back, and try again"


def test_a_damaged_folder_is_refused_unless_it_was_loaded_unverified(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    verified, trusted = (pickle.dumps(Superbloom.from_pretrained(tmp_path / "model", verify=v)) for v in (True, False))
    weights = bytearray((tmp_path / "model" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model" / "model.safetensors").write_bytes(weights)
    with pytest.raises(InputError, match="model.safetensors does not match its checksum"):
        pickle.loads(verified)
    assert pickle.loads(trusted).predict(ASKED)


@pytest.fixture
def changed(ring_corpus, folder) -> dict[str, Superbloom]:
    """Models that are not saved in any folder."""
    fitted = Superbloom(alpha=2, dim=16, ffn_dim=16, seq_len=8).fit(ring_corpus, steps=2, quiet=True)
    return {"fitted": fitted, "extended": Superbloom.from_pretrained(folder).extend(["name 7b"])}


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_what_is_in_no_folder_is_copied_whole(changed, way):
    asked = {"fitted": ["ring 1 name 2"], "extended": ["name 7", "name 7b"]}
    for name, model in changed.items():
        again = pickle.loads(pickle.dumps(model)) if way == "pickle" else copy.deepcopy(model)
        assert again.predict(asked[name]) == model.predict(asked[name])
        assert again.model.target_vocab is again.model.vocab
        assert again.model.vocab is not model.model.vocab
        assert (again.training, again.metrics) == (model.training, model.metrics)
    fitted = changed["fitted"]
    again = pickle.loads(pickle.dumps(fitted)) if way == "pickle" else copy.deepcopy(fitted)
    assert again.recommend(k=2).equals(fitted.recommend(k=2))


def test_a_deep_copy_has_its_own_weights_and_is_no_reference(loaded, folder):
    loaded.predict(ASKED)
    twin = copy.deepcopy(loaded)
    assert twin.predict(ASKED) == loaded.predict(ASKED)
    expected = loaded.predict(ASKED)
    twin.model.network.embedding.weight.data.neg_()
    again = pickle.loads(pickle.dumps(twin))
    assert loaded.predict(ASKED) == expected != twin.predict(ASKED) == again.predict(ASKED)


def test_a_shallow_copy_shares_the_model(loaded):
    twin = copy.copy(loaded)
    assert twin.model is loaded.model
    twin.extend(["name 7b"])
    assert len(loaded.model.vocab) == NAMES
    assert len(pickle.dumps(loaded)) < 1000 < len(pickle.dumps(twin))


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_predictor_is_pickled_and_copied(loaded, way, precision):
    for prior in (True, False):
        predictor = Predictor(loaded.model, precision=precision, prior=prior)
        predictor.predict(ASKED)
        again = pickle.loads(pickle.dumps(predictor)) if way == "pickle" else copy.deepcopy(predictor)
        assert (again.head.precision, again.prior) == (precision, prior)
        assert again.predict(ASKED) == predictor.predict(ASKED)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_vocabulary_of_text_is_pickled_and_copied(way):
    vocab = serving.text_vocab()
    text = "miles davis plays the piano"
    ids = vocab.segmenter.segment(text).ids.tolist()
    again = pickle.loads(pickle.dumps(vocab)) if way == "pickle" else copy.deepcopy(vocab)
    assert again.table.equals(vocab.table)
    assert again.normalisation == vocab.normalisation
    assert again.segmenter.segment(text).ids.tolist() == ids


def test_an_unknown_name_keeps_its_message_across_processes():
    error = UnknownNameError("Copenhagan", 20_000, lambda: ["Copenhagen"])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is UnknownNameError
    assert str(again) == str(error)
    assert (again.name, again.closest) == ("Copenhagan", ["Copenhagen"])


@pytest.mark.system
def test_importing_the_package_or_its_client_does_not_load_torch():
    code = "import sys, superbloom, superbloom.cli; superbloom.Client; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
