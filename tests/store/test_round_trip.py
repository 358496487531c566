"""A model or corpus that was saved is loaded as it was: by path, from the hub's cache, and over its own files."""

import json
import shutil
from pathlib import Path

import pytest

from superbloom.api import Superbloom
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.special import MASK
from tests.support import launch
from tests.support.folders import PLAIN, TWO, fitted


def flat(answers: list) -> list:
    """The predictions of one mask or of several."""
    return [one for some in answers for one in some] if isinstance(answers[0], list) else answers


@pytest.mark.parametrize("corpus", [PLAIN, TWO], ids=["one vocabulary", "two vocabularies"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False},
        {"positions": True, "layers": 2},
        {"inputs": "tokens", "mask_as": "element", "distance": False, "spread": False},
        {"norm": "post", "transform": True, "output_bias": False},
        {"num_hashes": 3, "alpha": 3, "softmax": "joint"},
    ],
    ids=str,
)
def test_a_model_survives_its_folder(tmp_path, corpus, options):
    model = fitted(corpus, **options)
    model.evaluate(corpus, split="train")
    model.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert again.model.config == model.model.config
    assert again.metrics == json.loads(json.dumps(model.metrics))
    for context in ([MASK], ["name 3", MASK, "näme 1"], ["name 6", "name 5", MASK, MASK]):
        for one, other in zip(flat(again.predict(context, k=6)), flat(model.predict(context, k=6)), strict=True):
            # subtle: mapped weights lie elsewhere in memory, and sums are taken in another order there
            assert one.score == pytest.approx(other.score, rel=1e-6)
            assert one.probability == pytest.approx(other.probability, rel=1e-6)
            assert (one.name, one.certified) == (other.name, other.certified)
    again.save_pretrained(tmp_path / "copy")
    files = {file.name for file in (tmp_path / "model").iterdir()} - {"config.json", "README.md"}
    assert len(files) == {PLAIN: 6, TWO: 7}[corpus]
    assert {name for name in files if not same(tmp_path / "model" / name, tmp_path / "copy" / name)} == set()


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_the_card_of_a_model_is_yours_to_edit(tmp_path, good):
    shutil.copytree(good / "model", tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("mine")
    assert Superbloom.from_pretrained(tmp_path / "model").predict(["name 1"], k=1)


def test_the_card_quotes_names(tmp_path):
    corpus = Corpus.from_sequences([['say "a\\b"\n```'] * 2 + ["b"]] * 20)
    fitted(corpus, alpha=1).save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    block = card.split("```python\n")[1].split("\n```\n")[0]
    called = []
    names = {"Superbloom": type("", (), {"from_pretrained": lambda _: model}), "MASK": MASK}
    model = type("", (), {"predict": lambda context, k: called.append((context, k))})
    exec(block.split("\n\n")[1], names)
    assert called == [(['say "a\\b"\n```', MASK], 10)]


HUB = """
import json, sys
from superbloom import InputError, Superbloom
for name in sys.argv[1:]:
    try:
        print(json.dumps(Superbloom.from_pretrained(name).predict(["name 1"], k=1)[0].name))
    except InputError as error:
        print(json.dumps({"refused": str(error)}))
"""


def test_a_name_of_the_hub_is_found_in_its_cache(good, tmp_path):
    """The layout of a download: a snapshot of links to blobs, found through refs/main."""
    repo, revision = tmp_path / "models--someone--cities", "0123456789abcdef0123456789abcdef01234567"
    for folder in ("refs", "blobs", f"snapshots/{revision}"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(revision)
    for file in (good / "model").iterdir():
        shutil.copy(file, repo / "blobs" / file.name)
        (repo / "snapshots" / revision / file.name).symlink_to(Path("../../blobs") / file.name)
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    names = ["someone/cities", "someone/nothing", "../cities", "no such folder"]
    done = launch.python(HUB, *names, environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, *refused = map(json.loads, done.stdout.splitlines())
    assert found == Superbloom.from_pretrained(good / "model").predict(["name 1"], k=1)[0].name
    messages = [answer["refused"] for answer in refused]
    assert [message.split(",")[0] for message in messages[:2]] == [
        "there is no folder someone/nothing",
        "there is no folder ../cities",
    ]
    assert messages[2] == "a model folder holds config.json; no such folder does not exist"
    assert "\n" not in "".join(messages)


def test_a_vocabulary_can_be_written_over_the_file_it_is_read_from(tmp_path):
    TWO.vocab.write(tmp_path / "vocab.arrow")
    again = Vocab.open(tmp_path / "vocab.arrow")
    again.write(tmp_path / "vocab.arrow")
    assert again.table.equals(Vocab.open(tmp_path / "vocab.arrow").table)


def test_metrics_that_are_missing_are_named(good, tmp_path):
    shutil.copytree(good / "model", tmp_path / "model")
    (tmp_path / "model" / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"metrics.json is missing; the folder is incomplete: copy it again"):
        Superbloom.from_pretrained(tmp_path / "model")
