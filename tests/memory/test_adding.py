"""A newer corpus is added to a memory: as if both had been counted together, and nothing twice."""

import json
from dataclasses import replace

import numpy as np
import pytest

from superbloom import MASK, Corpus, Superbloom
from superbloom.corpus import split_of
from superbloom.errors import InputError
from superbloom.memory import Memory, Pairs, Rows, adding, remember
from superbloom.memory import add as add_corpus
from superbloom.memory import pairs as pairs_module
from tests.support.launch import command as run

ALL = ("train", "valid", "test")
NAMES = [f"n{i}" for i in range(50)]
SMALL = {"alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16}
Table = dict[str, list[str]]


def table(seed: int, count: int = 60, key: str = "row") -> Table:
    rng = np.random.default_rng(seed)
    return {f"{key} {i}": rng.choice(NAMES, size=rng.integers(1, 30)).tolist() for i in range(count)}


def corpus_of(rows: Table) -> Corpus:
    return Corpus.from_keyed(rows.items())


def under_one_vocabulary(*tables: Table) -> list[Corpus]:
    """Corpora of the tables with the ids of all their names, as a model numbers them."""
    every = corpus_of({f"{number} {key}": row for number, rows in enumerate(tables) for key, row in rows.items()})
    return [corpus_of(rows).under(every.vocab) for rows in tables]


def counted(corpus: Corpus, neighbours: int = 1000, what: str = "both") -> Memory:
    return remember(corpus, what, ALL, neighbours)


def add(memory: Memory, corpus: Corpus) -> Memory:
    return add_corpus(memory, corpus, ALL, corpus.fingerprint()).memory


def neighbours_of(pairs: Pairs) -> dict[tuple[int, int], tuple[float, float]]:
    of = np.repeat(np.arange(len(pairs.counts)), np.diff(pairs.starts))
    weights = zip(pairs.weights.astype(float), pairs.after / 255, strict=True)
    return {(a, b): pair for a, b, pair in zip(of.tolist(), pairs.ids.tolist(), weights, strict=True)}


def same_pairs(found: Pairs, expected: Pairs) -> None:
    ours, theirs = neighbours_of(found), neighbours_of(expected)
    assert ours.keys() == theirs.keys()
    for pair in theirs:
        assert ours[pair] == pytest.approx(theirs[pair], rel=3e-3, abs=8e-3)
        assert ours[pair][0] == pytest.approx(theirs[pair][0], rel=3e-3)
    assert found.counts.tolist() == expected.counts.tolist()
    for begin, end in zip(found.starts[:-1], found.starts[1:], strict=True):
        assert (np.diff(found.weights[begin:end].astype(float)) <= 0).all()  # the strongest first


def rows_of(rows: Rows, corpus: Corpus) -> Table:
    """The remembered rows by key, in names."""
    found: Table = {}
    for piece, row in enumerate(rows.row.tolist()):
        ids = rows.ids[rows.starts[piece] : rows.starts[piece + 1]].tolist()
        found.setdefault(rows.key(row), []).extend(corpus.vocab.names(ids))
    return found


@pytest.mark.parametrize("chunk", [40, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_adding_is_counting_both(seed, chunk, monkeypatch):
    monkeypatch.setattr(pairs_module, "MAX_CHUNK_EVENTS", chunk)
    first, second = table(seed), table(100 + seed, 40, "newer")
    a, b, both = under_one_vocabulary(first, second, first | second)
    found, expected = add(counted(a), b), counted(both)
    same_pairs(found.pairs, expected.pairs)
    assert rows_of(found.rows, both) == first | second
    assert found.rows.is_sound(both.num_ids)
    assert found.pairs.is_sound(both.num_ids)
    assert np.array_equal(found.rows.rarity, expected.rows.rarity)
    third = table(200 + seed, 20, "newest")
    (c,) = under_one_vocabulary(third)
    assert len(c.vocab) == both.num_ids
    c = corpus_of(third).under(both.vocab)
    same_pairs(add(found, c).pairs, counted(corpus_of(first | second | third).under(both.vocab)).pairs)


@pytest.mark.parametrize("seed", range(4))
def test_a_newer_log_may_hold_everything_again(seed):
    """Some rows stay, some grow, some are new, and some are gone: as if the rows of both had been counted once."""
    rng, first = np.random.default_rng(seed), table(seed)
    newer = {key: row + rng.choice(NAMES, size=rng.integers(0, 15)).tolist() for key, row in first.items()}
    gone = [key for key in list(newer)[::7] if newer.pop(key)]
    newer |= table(seed + 50, 10, "new")
    a, b, whole = under_one_vocabulary(first, newer, newer | {key: first[key] for key in gone})
    found = add_corpus(counted(a), b, ALL, b.fingerprint())
    same_pairs(found.memory.pairs, counted(whole).pairs)
    assert rows_of(found.memory.rows, whole) == newer | {key: first[key] for key in gone}
    assert (found.rows, found.known) == (len(newer), len(newer) - 10)


def test_a_row_that_grew_twice_is_not_counted_twice():
    rows = [{"user": NAMES[:end]} for end in (8, 20, 33)]
    a, b, c = under_one_vocabulary(*rows)
    found = add(add(counted(a), b), c)
    same_pairs(found.pairs, counted(c).pairs)
    assert rows_of(found.rows, c) == rows[2]


def test_a_log_in_parts_and_then_whole_is_not_counted_twice():
    """Two parts have rows of one user each; the whole begins with both."""
    rows = [{"user": NAMES[:8]}, {"user": NAMES[8:12]}, {"user": NAMES[:20]}]
    a, b, whole = under_one_vocabulary(*rows)
    found = add(add(counted(a), b), whole)
    assert rows_of(found.rows, whole) == rows[2]
    assert found.pairs.counts.tolist() == counted(whole).pairs.counts.tolist()


def test_parts_stay_if_the_whole_has_nothing_new():
    a, b, c = under_one_vocabulary({"u": NAMES[:8]}, {"u": NAMES[8:12]}, {"u": NAMES[:12], "v": NAMES[:4]})
    found = add(add(counted(a), b), c)
    assert rows_of(found.rows, c) == {"u": NAMES[:12], "v": NAMES[:4]}
    assert found.rows.row.tolist() == [0, 1, 2]


def test_rows_of_one_key_are_told_apart():
    """The functions of a file: one row begins with another, two are equal, and a third equal one is new."""
    rows = [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b"]]
    first, second = Corpus.from_sequences(rows, ["file"] * 4), Corpus.from_sequences([*rows, rows[1]], ["file"] * 5)
    found = add_corpus(counted(first), second.under(first.vocab), ALL, "0" * 64)
    assert (found.rows, found.known) == (5, 4)
    same_pairs(found.memory.pairs, counted(second).pairs)
    assert len(found.memory.rows.ids) == 10


def test_a_row_that_changed_is_another_row():
    a, b = under_one_vocabulary({"page": ["a", "b", "c"]}, {"page": ["b", "a", "c"]})
    found = add(counted(a), b)
    assert found.rows.row.tolist() == [0, 1]
    assert found.pairs.counts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("what", ["pairs", "rows"])
def test_what_is_not_remembered_is_not_added(what):
    a, b, both = under_one_vocabulary(table(1), table(2, key="new"), table(1) | table(2, key="new"))
    found = add(counted(a, what=what), b)
    assert found.kind == what
    if what == "pairs":
        same_pairs(found.pairs, counted(both).pairs)
    else:
        assert rows_of(found.rows, both) == table(1) | table(2, key="new")


def test_names_that_the_old_memory_lacks_are_counted():
    older = corpus_of(table(5))
    newer = {f"new {i}": [f"n{i}", f"later {i}", f"n{i + 1}"] for i in range(20)}
    both = corpus_of(table(5) | newer)
    names = [*older.vocab.names(range(older.num_ids)), *(f"later {i}" for i in range(20))]
    vocab = older.vocab.extended(names)[0]
    found = add(counted(older), corpus_of(newer).under(vocab))
    same_pairs(found.pairs, counted(both.under(vocab)).pairs)


def test_the_strongest_neighbours_are_kept():
    first, second = table(8), table(9, key="new")
    a, b, both = under_one_vocabulary(first, second, first | second)
    found, whole = add(counted(a, 5), b).pairs, neighbours_of(counted(both).pairs)
    assert np.diff(found.starts).max() == 5
    for pair, (weight, _) in neighbours_of(found).items():
        assert weight <= whole[pair][0] * 1.003  # what an earlier cut forgot is missing, and nothing is invented


def test_beyond_the_limit_the_oldest_rows_are_forgotten(monkeypatch):
    first, second = table(1), table(2, key="new")
    a, b, both = under_one_vocabulary(first, second, first | second)
    memory, size = counted(a), sum(map(len, second.values()))
    monkeypatch.setattr(adding, "MAX_ROW_EVENTS", size + 100)
    found = add(memory, b)
    kept = rows_of(found.rows, both)
    assert size + 70 <= len(found.rows.ids) <= size + 100
    assert kept == dict([*first.items(), *second.items()][-len(kept) :])
    same_pairs(found.pairs, counted(both).pairs)  # pairs stay
    monkeypatch.setattr(adding, "MAX_ROW_EVENTS", 1)
    assert list(rows_of(add(memory, b).rows, both)) == [list(second)[-1]]


def test_without_keys_rows_are_added_as_they_are():
    """Folders written before rows had numbers, and those without keys by choice."""
    a, b, both = under_one_vocabulary(table(3), table(4, key="new"), table(3) | table(4, key="new"))
    memory = counted(a)
    nameless = replace(memory.rows, key_starts=None, key_text=None)
    for rows in (nameless, replace(nameless, row=None)):
        found = add(replace(memory, rows=rows), b)
        same_pairs(found.pairs, counted(both).pairs)
        assert found.rows.key_text is None
        assert len(found.rows.ids) == sum(map(len, (table(3) | table(4, key="new")).values()))


def test_what_is_remembered_is_refused():
    a, b = under_one_vocabulary(table(1), table(1) | {"more": ["n1", "n2"]})
    memory = counted(a)
    with pytest.raises(
        InputError, match="this corpus is remembered already, so nothing is changed; give a corpus with"
    ):
        add(memory, a)
    larger = add(memory, b)
    for corpus in (a, b):
        with pytest.raises(InputError, match="this corpus is remembered already"):
            add(larger, corpus)
    part = corpus_of(dict(list(table(1).items())[:20])).under(a.vocab)
    with pytest.raises(InputError, match="all 20 rows of this corpus are remembered already, so nothing is changed"):
        add(larger, part)


def test_test_rows_are_not_added(model):
    rows = {key: ["a", "d"] for key in (f"k{i}" for i in range(99)) if split_of([key])[0] == 2}
    assert len(rows) > 5
    with pytest.raises(InputError, match="nothing of this corpus can be remembered: .* or has no training rows"):
        model.remember(corpus_of(rows))
    model.remember(corpus_of(rows | {"k0": ["a", "e"]}))
    counts, vocab = model.model.memory.pairs.counts, model.model.vocab
    assert (counts[vocab.id("d")], counts[vocab.id("e")]) == (0, 1)


def test_a_damaged_memory_is_refused_when_it_is_added_to():
    a, b = under_one_vocabulary(table(1), table(2, key="new"))
    memory = counted(a)
    text = replace(memory.rows, key_text=np.full_like(memory.rows.key_text, 255))
    with pytest.raises(InputError, match="keys that are not UTF-8; save the model again"):
        add(replace(memory, rows=text), b)
    ids = replace(memory.rows, ids=np.full_like(memory.rows.ids, 10**9))
    with pytest.raises(InputError, match="the memory of the model holds"):
        add(replace(memory, rows=ids), b)


# Models


def chains(key: str, first: str, last: str) -> Corpus:
    return Corpus.from_keyed((f"{key} {i}", [first, last, f"{key} end"]) for i in range(40))


@pytest.fixture
def model() -> Superbloom:
    rows = {f"old {i}": ["a", "b", "c", f"x{i % 25}"] for i in range(80)}
    return Superbloom(**SMALL).fit(corpus_of(rows), steps=2, quiet=True)


def best(model: Superbloom, *context: object) -> str:
    return model.predict([*context], k=1, exclude_context=True)[0].name


def test_a_model_knows_the_old_and_the_new_rows(model, tmp_path):
    model.remember(chains("new", "d", "e"))
    assert best(model, "d", MASK, "new end") == "e"
    assert best(model, "a", MASK, "c") == "b"
    model.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert best(again, "d", MASK, "new end") == "e"
    for corpus in (chains("new", "d", "e"), Corpus.from_keyed([("old 0", ["a", "b", "c", "x0"])])):
        with pytest.raises(InputError, match="remembered already, so nothing is changed"):
            again.remember(corpus)
    again.remember(chains("last", "f", "g"))
    with pytest.raises(InputError, match="remembered already"):  # under another vocabulary by now
        again.remember(chains("new", "d", "e"))
    assert len(again.model.memory.corpus) == 3 * 64


def test_replacing_forgets_the_old_rows(model):
    model.remember(chains("new", "d", "e"), replace=True)
    memory = model.model.memory
    assert set(rows_of(memory.rows, chains("new", "d", "e").under(model.model.vocab))) <= {
        f"new {i}" for i in range(40)
    }
    assert not len(memory.pairs.of(np.array([model.model.vocab.id("a")]), len(model.model.vocab))[0])


def test_old_rows_in_a_newer_log_are_reported(model):
    rows = {f"old {i}": ["a", "b", "c", f"x{i % 25}", "d"] for i in range(80)}
    with pytest.warns(UserWarning, match=r"^\d\d of \d\d rows were remembered, whole or in part; the rest was added$"):
        model.remember(corpus_of(rows))
    assert best(model, "a", "b", "c", "x1") == "d"


def test_the_command_adds_replaces_and_refuses(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    chains("new", "d", "e").save(tmp_path / "newer")
    done = run("extend", "model", "--corpus", "newer", "--out", "added", cwd=tmp_path)
    assert "pieces of rows, of newer and of what it held before." in done.stdout
    replaced = run("extend", "model", "--corpus", "newer", "--replace", "--out", "replaced", cwd=tmp_path)
    assert "pieces of rows, of newer, and of no other corpus." in replaced.stdout
    sizes = [
        json.loads(run("extend", "model", "--corpus", "newer", *more, "--json", cwd=tmp_path).stdout)
        for more in (["--out", "o1"], ["--out", "o2", "--replace"])
    ]
    assert sizes[0]["remembered rows"] > sizes[1]["remembered rows"] > 30
    again = run("extend", "added", "--corpus", "newer", "--out", "twice", cwd=tmp_path, code=2)
    assert again.stderr.startswith("error: this corpus is remembered already, so nothing is changed; give a corpus")
    assert again.stderr.count("\n") == 1
    assert not (tmp_path / "twice").exists()
    (tmp_path / "names.txt").write_text("z\n")
    alone = run("extend", "model", "names.txt", "--replace", "--out", "o", cwd=tmp_path, code=2)
    assert alone.stderr == "error: --replace given without a corpus to remember instead; give it: --corpus CORPUS\n"
