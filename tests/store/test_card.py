"""The model card: what it says, that names cannot break it, and that people's text in it is kept."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom import Corpus, Superbloom
from superbloom.corpus.vocab import Vocab
from superbloom.evaluate.recall import evaluate
from superbloom.memory import Memory
from superbloom.model.extend import extend
from superbloom.store.card import BEGIN, END, FRONT, YOURS, card, escaped, quoted

HOSTILE = [
    "pipe | and `tick` and ``` fence",
    "two\nlines\n\n# heading\n```\nfence",
    "<script>alert(1)</script> &amp; <!-- comment",
    END,
    BEGIN,
    "[link](http://example.org) ![image](x) *bold* _it_ @someone $x$ ~~no~~",
    "\\ backslash \\| \u202e turned \u2028 line\x00\x1b[31m",
    "---",
    "x" * 10_000,
]


@pytest.fixture(scope="module")
def fitted(ring_corpus) -> Superbloom:
    options = {"dim": 16, "ffn_dim": 16, "heads": 2}
    return Superbloom(alpha=4, **options).fit(ring_corpus, steps=3, batch_size=16, valid_every=3, quiet=True)


@pytest.fixture
def folder(tmp_path, fitted) -> Path:
    fitted.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def card_of(model: Superbloom, **options: str) -> str:
    return card(model.model, model.training, model.metrics, **options)


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n\n")[1].split("\n## ")[0].strip()


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table, as a reader of Markdown sees them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[html.unescape(cell.strip().strip("`")) for cell in line.strip("|").split("|")] for line in lines]


def test_a_card_shows_sizes_and_training(fitted):
    text = card_of(fitted, name="rings")
    config = fitted.model.config
    sizes = dict(rows_of(section(text, "Sizes"))[2:])
    assert sizes["names"] == "192"
    assert sizes["names to a bucket α"] == "4"
    assert sizes["hash functions m"] == "2"
    assert sizes["tokens"] == str(config.num_tokens) == "104"
    assert sizes["parameters"].startswith(f"{fitted.model.network.num_parameters():,} (")
    training = dict(rows_of(section(text, "Training"))[2:])
    assert training["steps"].split(";")[0] == "3"
    assert training["fingerprint of the corpus"] == fitted.training["corpus"]
    assert training["options"].split("`, `") == ["steps=3", "batch_size=16", "valid_every=3"]
    assert text.startswith(f"---\n{FRONT}\n---\n\n# rings\n\nA Superbloom over 192 names")
    assert section(text, "Yours to fill in") == f"{BEGIN}\n\n{YOURS}\n\n{END}"


def test_names_that_were_added_and_options_that_differ_are_shown(fitted):
    grown = card(extend(fitted.model, ["new 1", "new 2"]), {}, {})
    sizes = dict(rows_of(section(grown, "Sizes"))[2:])
    assert sizes["names added after training"] == "2"
    assert sizes["names"] == "194"
    config = replace(fitted.model.config, dropout=0.25, mask_as="element")
    network = type(fitted.model.network)(config)
    changed = card(replace(fitted.model, network=network), {}, {})
    assert dict(rows_of(section(changed, "Sizes"))[2:])["other options"] == "dropout=0.25`, `mask_as=element"
    assert section(changed, "Training") == "It is not known how it was trained."


def test_measured_figures_are_those_of_the_evaluation(fitted, ring_corpus):
    before = section(card_of(fitted), "Measured")
    recall_at_10 = fitted.metrics["history"][-1]["recall_at_10"]
    assert f"On validation rows, recall@10 was {recall_at_10:.3f} at step 3." in before
    assert before.split("```sh\n")[1].startswith('superbloom evaluate "model" CORPUS')
    figures = evaluate(fitted.predictor, ring_corpus, rows=20)
    table = rows_of(section(card(fitted.model, {}, {"test": figures}), "Measured"))
    what = "20 hidden elements of test rows; names of the context are left out"
    assert table[0] == [what, "recall@1", "recall@10", "recall@20"]
    rows = {row: cells for row, *cells in table[2:]}
    assert set(rows) == {"this model", "network alone", "memory alone", "the paper's sum", *figures["yardsticks"]}
    share = figures["yardsticks"]["popularity"]["10"]
    shown = [f"{value:.3f}".removeprefix("0") for value in (share["value"], (share["high"] - share["low"]) / 2)]
    assert rows["popularity"][1] == f"{shown[0]} ±{shown[1]}"


def test_a_card_shows_what_the_model_remembers(fitted):
    memory = fitted.model.memory
    facts = dict(rows_of(section(card_of(fitted), "Memory"))[2:])
    assert facts["pairs"] == f"{len(memory.pairs.ids):,}, at most {memory.neighbours} for a name"
    pieces = f"{len(memory.rows.starts) - 1:,} pieces of rows, {len(memory.rows.ids):,} ids in all"
    assert facts["rows"] == f"{pieces}, {memory.rows.row[-1] + 1:,} keys"
    weights = dict(part.rsplit(" ", 1) for part in facts["weights"].split(", "))
    assert {part: float(weight) for part, weight in weights.items()} == pytest.approx(memory.weights, abs=5e-4)


@pytest.mark.parametrize(
    ("remembered", "shown", "promise"),
    [
        ({"pairs", "rows"}, {"pairs", "rows", "weights"}, "rows can be read from this folder"),
        ({"rows"}, {"rows", "weights"}, "rows can be read from this folder"),
        ({"pairs"}, {"pairs", "weights"}, "The rows themselves are not in it."),
        (set(), set(), "The rows it was trained on are not in it."),
    ],
)
def test_a_card_says_whether_rows_can_be_read_from_the_folder(fitted, remembered, shown, promise):
    kept = {part: getattr(fitted.model.memory, part) for part in remembered}
    memory = Memory(kept.get("pairs"), kept.get("rows"))
    memory = replace(memory, weights=dict.fromkeys(memory.parts, 1 / len(memory.parts))) if kept else None
    text = card(replace(fitted.model, memory=memory), {}, {})
    assert set(dict(rows_of(section(text, "Memory"))[2:])) == shown
    assert ("answers with the network alone" in section(text, "Memory")) == (not kept)
    assert promise in " ".join(section(text, "Intended use and limits").split())


@pytest.mark.parametrize(
    "metrics",
    [
        {"test": 3, "history": [{"step": "x", "recall_at_10": None}]},
        {"test": {"recall": {}}},
        {"test": {"recall": {"1": 0.5}, "rows": 2}},
        {"test": {"recall": {"1": {"value": 10**400, "low": 0, "high": 0}}, "rows": 2}},
        {"test": {"recall": [1, 2], "rows": []}},
    ],
)
def test_figures_that_are_none_do_not_keep_a_model_from_being_saved(fitted, metrics):
    assert "Nothing was measured" in card(fitted.model, {"steps": "a", "seconds": [], "config": 3}, metrics)


def named(fitted: Superbloom, name: str, before: str = "") -> str:
    """A card in which everything that has a name has this one."""
    names = [name, *(f"name {i}" for i in range(len(fitted.model.vocab) - 1))]
    vocab = Vocab.from_counts({name: 1000 - i for i, name in enumerate(names)})
    recall = {name: dict.fromkeys(("value", "low", "high"), 0.5)}
    metrics = {"test": {"rows": 1, "recall": recall, "yardsticks": {name: recall}}}
    training = {"corpus": name, "steps": 1, "config": {name: name}}
    model = replace(fitted.model, vocab=vocab, target_vocab=vocab)
    return card(model, training, metrics, name=name, before=before)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_cannot_break_a_card(fitted, name):
    text, plain = named(fitted, name), named(fitted, "plain: no word of a command")
    # The same lines, headings, fences, marks and columns as with a plain name.
    assert text.splitlines() == text.split("\n")[:-1]
    assert text.count("\n") == plain.count("\n")
    for part in ("\n#", "\n---\n", "```", "<", BEGIN, END):
        assert text.count(part) == plain.count(part), part
    columns = [[line.count("|") for line in page.splitlines() if line[:1] == "|"] for page in (text, plain)]
    assert columns[0] == columns[1]
    # Nor do names look like what people wrote.
    assert named(fitted, name, before=text) == text
    code = text.split("```python\n")[1].split("\n```\n")[0].splitlines()
    called = []
    model_ = type("", (), {"predict": lambda context, k: called.append(context[0])})
    scope = {"Superbloom": type("", (), {"from_pretrained": lambda folder: called.append(folder) or model_}), "MASK": 0}
    exec("\n".join(code[2:]), scope)
    assert called == [name, name]


@given(st.text())
def test_escaped_text_shows_what_it_was(text):
    line = escaped(text)
    assert line.isprintable()
    assert not set(line) & set("<>|`*_[]\\~$@{}")
    cut = text[:60] + "…" * (len(text) > 60)
    assert html.unescape(line) == (cut if cut.isprintable() else repr(cut)[1:-1])


@given(st.text())
def test_quoted_text_is_that_text(text):
    assert eval(quoted(text)) == text
    assert quoted(text).isprintable()
    assert "<" not in quoted(text)


@settings(max_examples=100)
@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])), st.booleans())
def test_what_people_write_is_kept(fitted, text, marked):
    options = {"before": f"{BEGIN}{text}{END}" if marked else text}
    once = card_of(fitted, **options)
    assert once == card_of(fitted, before=once)
    if marked:
        assert f"{BEGIN}\n\n{text.strip()}\n\n{END}" in once
    else:
        assert text.strip() in once.split(BEGIN)[1].split(END)[0]


def test_an_edited_card_loads_and_its_own_parts_stay_when_saved_again(folder, fitted):
    file = folder / "README.md"
    edited = file.read_text(encoding="utf-8").replace(YOURS, "- Data: **mine** | `x`\n\n## Own heading\n\nNäme")
    edited = edited.replace("# license: (TODO", "license: mit\n# (done").replace("# model", "# A name of mine")
    file.write_text(edited.replace("192 names", "7 names"), encoding="utf-8")
    again = Superbloom.from_pretrained(folder)
    again.save_pretrained(folder)
    text = file.read_text(encoding="utf-8")
    assert "\nlicense: mit\n" in text.split("\n---\n")[0]
    assert f"{BEGIN}\n\n- Data: **mine** | `x`\n\n## Own heading\n\nNäme\n\n{END}" in text
    assert "192 names" in text
    assert "7 names" not in text
    assert "\n# model\n" in text
    again.save_pretrained(folder)
    assert file.read_text(encoding="utf-8") == text


def test_a_card_without_the_marks_is_kept_whole(folder):
    file = folder / "README.md"
    file.write_bytes("\ufeff---\nlicense: mit\r\n---\r\nAll mine, caf".encode() + b"\xe9 \xff")
    model = Superbloom.from_pretrained(folder)
    model.save_pretrained(folder)
    data = file.read_bytes()
    assert data.startswith(b"---\nlicense: mit\n---\n\n# model\n")
    assert b"All mine, caf\xe9 \xff\n" in data
    assert data.index(BEGIN.encode()) < data.index(b"All mine") < data.index(END.encode())
    model.save_pretrained(folder)
    assert file.read_bytes() == data


def test_a_folder_without_a_card_loads_and_gets_one(folder):
    (folder / "README.md").unlink()
    assert "README.md" not in json.loads((folder / "config.json").read_text())["files"]
    model = Superbloom.from_pretrained(folder)
    assert model.predict(["ring 1 name 1"], k=1)
    model.save_pretrained(folder)
    assert YOURS in (folder / "README.md").read_text(encoding="utf-8")


def test_the_card_of_one_folder_is_not_that_of_another(tmp_path, folder):
    (folder / "README.md").write_text(f"{BEGIN}mine{END}", encoding="utf-8")
    shutil.copytree(folder, tmp_path / "copy")
    model = Superbloom.from_pretrained(tmp_path / "copy")
    model.save_pretrained(tmp_path / "new")
    assert YOURS in (tmp_path / "new" / "README.md").read_text(encoding="utf-8")


def test_a_second_vocabulary_is_shown():
    rows = [["a", "b", "c"], ["b", "c", "d"]] * 20
    corpus = Corpus.from_sequences(rows, targets=[[f"{name}!" for name in row] for row in rows])
    two = Superbloom(alpha=1, dim=8, heads=1, ffn_dim=8).fit(corpus, steps=2, quiet=True)
    text = card_of(two)
    assert "A Superbloom over 4 names; it predicts another 4:" in text
    assert dict(rows_of(section(text, "Sizes"))[2:])["names that are predicted"] == "4"


def test_the_page_about_cards_shows_one_as_it_is_written():
    page = (Path(__file__).parents[2] / "docs" / "model-card.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^````markdown\n(.*?)^````$", page, re.MULTILINE | re.DOTALL)
    assert shown.startswith(f"---\n{FRONT}\n---\n")
    assert f"{BEGIN}\n\n{YOURS}\n\n{END}" in shown
