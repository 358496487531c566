"""A model of text is asked with a text, and answers as the paper's Figure 5 does."""

import json
from functools import partial

import pytest

from superbloom import MASK, Superbloom
from superbloom.errors import InputError
from superbloom.evaluate import HeldOut, popularity, recall_table, verdict
from superbloom.evaluate.content import is_content
from superbloom.evaluate.metrics import recall
from tests.support.launch import command

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def model(text_corpus) -> Superbloom:
    options = {"num_hashes": 2, "alpha": 2, "dim": 32, "seq_len": 16}
    training = {"steps": 150, "batch_size": 64, "learning_rate": 5e-3, "warmup": 20, "valid_rows": 50}
    return Superbloom("text", **options).fit(text_corpus, **training, quiet=True)


@pytest.mark.system
def test_a_text_gives_a_list_for_each_mask(model):
    (found,) = model.predict("Miles Davis is a [MASK] musician.", k=3)
    assert found[0].name == "jazz"
    assert found[0].certified
    first, second = model.predict("[MASK1] is a jazz [MASK2].", k=2)
    assert {answer.name for answer in first} == {"miles_davis", "john_coltrane"}
    assert second[0].name == "musician"


def test_names_of_a_text_are_answered_as_the_text_is(model):
    """A list of entries stands between [CLS] and [SEP], too."""
    names = ["miles davis", "is", "a", MASK, "musician", "."]
    as_text = model.predict("miles davis is a [MASK] musician.", k=3)[0]
    assert model.predict(names, k=3) == as_text


def test_what_was_not_in_the_text_is_still_read(model):
    (found,) = model.predict("miles davis is a [MASK] musicians", k=1)
    assert len(found) == 1
    with pytest.warns(UserWarning, match="'qq' cannot be read with these word pieces; left out"):
        model.predict("miles davis is a [MASK] qq", k=1)


def test_what_cannot_be_asked_is_told(model, ring_corpus):
    with pytest.raises(
        InputError, match=r"'Miles Davis plays.' has no \[MASK\]; put one where something is to be filled"
    ):
        model.predict("Miles Davis plays.")
    with pytest.raises(InputError, match="23 elements given; this model reads up to 16: shorten the context"):
        model.predict("piano " * 20 + "[MASK]")
    for text in ("[MASK]" * 1000, "x" * 10_000 + "[MASK]"):  # not even read
        with pytest.raises(InputError, match=r"a text of .* characters with .* masks given; this model reads up to 16"):
            model.predict(text)
    plain = Superbloom(alpha=2, dim=16).fit(ring_corpus, steps=1, quiet=True)
    with pytest.raises(InputError, match=r"the text 'ring \[MASK\]' given, but this model reads names; give a list"):
        plain.predict("ring [MASK]")


def test_recall_is_told_by_kind(model, text_corpus):
    figures = model.evaluate(text_corpus, draws=300)
    kinds = figures["kinds"]
    assert kinds.keys() == {"word piece", "bigram"}
    assert sum(kind["hidden"] for kind in kinds.values()) == figures["rows"] == 300
    overall = sum(kind["hidden"] * kind["10"]["value"] for kind in kinds.values()) / 300
    assert overall == pytest.approx(figures["recall"]["10"]["value"])
    assert figures["yardsticks"].keys() == {"popularity", "repetition"}
    assert figures["recall"]["1"]["value"] > 0.5


def test_recall_of_content_words_comes_first(model, text_corpus):
    """It is that of the hidden elements that are content, and everything keeps its own row."""
    figures = model.evaluate(text_corpus, draws=300)
    names, counts = text_corpus.vocab.table["name"].combine_chunks(), text_corpus.id_counts("train")
    held_out = HeldOut.of(text_corpus, "test", model.model.config.seq_len, draws=300)
    content = is_content(names, counts)[held_out.targets]
    found = figures["content"]
    assert 0 < found["hidden"] == content.sum() < 300
    assert found["yardsticks"]["popularity"] == recall(popularity(text_corpus, held_out, 20)[content])
    rest = sum(figures["recall"][k]["value"] * 300 - found["recall"][k]["value"] * found["hidden"] for k in ("1", "20"))
    assert -1e-6 <= rest <= 2 * (300 - found["hidden"]) + 1e-6
    rows = list(recall_table(figures).columns[0].cells)
    assert rows[:4] == [
        f"this model, content words ({found['hidden']})",
        "popularity, content words",
        "repetition, content words",
        "this model",
    ]
    assert f"{found['recall']['10']['value']:.3f}" in verdict(figures)
    assert model.evaluate(text_corpus, draws=20, yardsticks=False)["content"]["yardsticks"] == {}


def test_the_command_answers_a_text(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    ask = partial(command, "predict", "model", cwd=tmp_path)
    shown = ask("--text", "[MASK] is a jazz musician.", "-k", "2")
    assert "miles_davis" in shown.stdout
    assert "certified" in shown.stdout
    half = ask("--text", "[MASK] is a jazz qq.", "-k", "1")
    assert half.stderr.splitlines() == ["'qq' cannot be read with these word pieces; left out"]
    told = json.loads(ask("--text", "[MASK1] is a [MASK2] musician.", "-k", "1", "--json").stdout)
    assert told["context"] == "[MASK1] is a [MASK2] musician."
    assert [answers[0]["name"] for answers in told["predictions"]][1] == "jazz"
    for words, line in (
        (("--text", "no mask"), "error: 'no mask' has no [MASK]; put one where something is to be filled in"),
        (("jazz", "--text", "a [MASK]"), "error: give the names of a context, or a --text with [MASK], and not both"),
        ((), "error: give the names of a context, or a --text with [MASK], and not both"),
        (("--text", "a [MASK]", "--exclude-context"), "error: exclude_context goes with names"),
    ):
        failed = ask(*words, code=2)
        assert failed.stderr.startswith(line), failed.stderr
        assert len(failed.stderr.splitlines()) == 1
