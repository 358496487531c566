"""No pickle is read from a model folder, by a server, or from a run that is resumed (check 17)."""

import json
from pathlib import Path

from tests.support import launch

# Loads, predicts, serves and resumes a run, and counts what is unpickled meanwhile. `broken` runs before that.
NO_PICKLE = """
import json, pickle, sys
from pathlib import Path
import huggingface_hub, lightning, rapidfuzz.process, torch, torch.utils.tensorboard
from starlette.testclient import TestClient
from superbloom import MASK, Corpus, Superbloom
from superbloom.store import model_folder as store
from superbloom.training import checkpoints
from superbloom.predict import Predictor
from superbloom.serve.app import make_app

model_folder, corpus_folder, run, broken = sys.argv[1:]
corpus = Corpus.open(corpus_folder)
Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2).fit(corpus, steps=2, run=run, save_every=1, quiet=True)
exec(broken)
events, counts = [], {}
sys.addaudithook(lambda event, arguments: events.append(event) if event.startswith("pickle.") else None)

def part(name):
    counts[name] = len(events)
    events.clear()

model = Superbloom.from_pretrained(model_folder)
Corpus.open(corpus_folder)
part("load")
answers = [model.predict(["name 1", MASK], k=3), model.predict(["name 2"], k=3, exclude=["NAME 2"])]
part("predict")
with TestClient(make_app(Predictor(store.load(model_folder).model)), base_url="http://localhost") as client:
    assert client.post("/v1/predict", json={"context": ["name 1"]}).status_code == 200
part("serve")
again = Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2).fit(corpus, steps=4, run=run, resume=True, quiet=True)
assert again.training["steps"] == 4
part("resume")
print(json.dumps(counts))
"""
# A loader as others have it, and a resume that trusts what it finds.
UNPICKLES = """
def load_tensors(*arguments):
    return pickle.loads(pickle.dumps(original(*arguments)))
original, store.load_tensors = store.load_tensors, load_tensors
read = torch.load
checkpoints.torch.load = lambda path, weights_only, **options: read(path, weights_only=False, **options)
"""


def unpickled(good: Path, run: Path, broken: str = "") -> dict[str, int]:
    """The number of objects that loading, predicting, serving and resuming unpickled."""
    done = launch.python(NO_PICKLE, good / "model", good / "corpus", run, broken)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_no_pickle_is_ever_read(good, tmp_path, check):
    found = unpickled(good, tmp_path / "run")
    assert found == {"load": 0, "predict": 0, "serve": 0, "resume": 0}
    check(17, f"events of pickle in {', '.join(found)}: 0")


def test_a_loader_that_unpickles_is_noticed(good, tmp_path, check):
    found = unpickled(good, tmp_path / "run", UNPICKLES)
    assert found["load"] > 0
    assert found["resume"] > 0
    check.twin(
        17, "pickle in the loader, weights_only=False in the resume", f"{found['load']} and {found['resume']} events"
    )
