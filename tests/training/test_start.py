"""Where training starts: least squares against numpy's, training rows alone, answers before the first step."""

import numpy as np
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.corpus import SPLITS
from superbloom.corpus.cooccurrence import factors, similarity
from superbloom.hashing.bloom import BloomHash
from superbloom.model.model import Model
from superbloom.training.initialise import initialise_from_cooccurrence, initialise_from_frequencies, spread_over_tokens

STILL = {"steps": 1, "learning_rate": 1e-12, "quiet": True, "remember": "none"}  # a step that moves nothing
SMALL = {"alpha": 2, "dim": 32, "heads": 2, "ffn_dim": 64}


def started(corpus: Corpus, **options) -> Model:
    torch.manual_seed(0)
    model = Model.create(Superbloom(**SMALL | options).config_for(corpus), corpus.vocab, corpus.target_vocab)
    initialise_from_cooccurrence(model, corpus)
    return model


def test_tokens_are_the_weighted_least_squares_of_what_they_add_up_to():
    rng = np.random.default_rng(0)
    bloom = BloomHash.random(60, 2, 4, seed=1)
    vectors, weights = rng.standard_normal((60, 5)), rng.uniform(0.5, 2, 60)
    tokens = bloom.digest(torch.arange(60)).numpy()
    parts = spread_over_tokens(vectors, tokens, weights)
    digests = np.zeros((60, 2 * bloom.num_buckets))
    digests[np.arange(60)[:, None], tokens] = 1
    root = np.sqrt(weights)[:, None]
    best, *_ = np.linalg.lstsq(root * digests, root * vectors, rcond=None)
    missed, least = (np.sum((root * (digests @ tokens - vectors)) ** 2) for tokens in (parts, best))
    assert missed == pytest.approx(least, rel=0.01)
    assert missed < 0.8 * np.sum((root * vectors) ** 2)


def test_factors_are_the_leading_ones():
    rng = np.random.default_rng(1)
    from scipy import sparse

    matrix = sparse.random(80, 50, density=0.2, random_state=rng, dtype=np.float32).tocsr()
    inputs, outputs = factors(matrix, 10, is_symmetric=False)
    values = np.linalg.svd(matrix.toarray(), compute_uv=False)
    left = np.linalg.norm(matrix.toarray() - inputs @ outputs.T)
    assert left == pytest.approx(np.sqrt((values[10:] ** 2).sum()), rel=0.01)


def test_factors_of_both_sides_leave_out_negative_values():
    """Names that only meet names of another kind have values in pairs of ± λ; one embedding takes the positive."""
    from scipy import sparse

    pairs = np.kron(np.array([[0, 1], [1, 0]]), np.kron(np.diag([1.0, 2.0, 3.0]), np.ones((2, 2))))
    inputs, outputs = factors(sparse.csr_matrix(pairs), 12, is_symmetric=True)
    assert inputs is outputs
    values, vectors = np.linalg.eigh(pairs)
    positive = (vectors * np.maximum(values, 0)) @ vectors.T
    assert np.allclose(inputs @ inputs.T, positive, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"norm": "post"}, {"alpha": 1}, {"inputs": "tokens"}], ids=str)
def test_the_first_answers_are_already_good(ring_corpus, options):
    recall = {}
    for warm in (False, True):
        superbloom = Superbloom(**SMALL | options).fit(ring_corpus, warm_start=warm, **STILL)
        recall[warm] = superbloom.evaluate(ring_corpus)["recall"]["10"]["value"]
    assert recall[False] < 0.2
    assert recall[True] > 0.6


@pytest.mark.parametrize(("num_hashes", "alpha"), [(2, 1), (2, 4), (3, 3)])
def test_hashes_share_evenly_what_is_explained(ring_corpus, num_hashes, alpha):
    model = started(ring_corpus, num_hashes=num_hashes, alpha=alpha)
    weight, _ = model.network.output_layer()
    lengths = weight.detach().square().sum(dim=2).mean(dim=1).sqrt()
    assert float(lengths.max() / lengths.min()) < 1.25


def test_with_a_transform_there_is_no_such_start(ring_corpus):
    """It would be worse than noise: a random layer stands between the mean and the output."""
    torch.manual_seed(0)
    config = Superbloom(**SMALL, transform=True).config_for(ring_corpus)
    model = Model.create(config, ring_corpus.vocab)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    initialise_from_cooccurrence(model, ring_corpus)
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())


def test_an_unhashed_start_answers_as_the_factorised_counts_do(ring_corpus):
    """Alone in the context, a name is answered with the names of its own ring."""
    superbloom = Superbloom(**SMALL | {"num_hashes": 1, "alpha": 1}).fit(ring_corpus, **STILL)
    for ring in (2, 17):
        found = superbloom.predict([f"ring {ring} name 4"], k=6)
        assert sum(answer.name.startswith(f"ring {ring} ") for answer in found) >= 5


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"num_hashes": 3, "alpha": 3}, {"norm": "post"}], ids=str)
def test_held_out_rows_have_no_say(ring_corpus, options):
    """Names of the test rows are exchanged: the start is the same to the bit."""
    one = started(ring_corpus, **options)
    chosen = np.repeat(ring_corpus.splits != SPLITS["train"], np.diff(ring_corpus.offsets))
    other_corpus = Corpus.from_sequences([["a"], ["b"]])
    other_corpus.__dict__.update(ring_corpus.__dict__)
    other_corpus.ids = ring_corpus.ids.copy()
    other_corpus.ids[chosen] = np.roll(other_corpus.ids[chosen], 5)
    other_corpus.targets = other_corpus.ids
    other = started(other_corpus, **options)
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name


def test_tokens_without_a_counted_id_keep_their_noise():
    """Names of one test row occur nowhere else: buckets of their own stay as they were drawn."""
    rows = [[f"name {(row + i) % 12}" for i in range(4)] for row in range(60)]
    keys = [str(row) for row in range(60)]
    from superbloom.corpus import split_of

    held_out = next(f"page {i}" for i in range(100) if split_of([f"page {i}"])[0] == SPLITS["test"])
    corpus = Corpus.from_sequences([*rows, ["new 1", "new 2"]], [*keys, held_out])
    torch.manual_seed(0)
    model = Model.create(ModelConfig(num_ids=14, num_hashes=1, alpha=1, dim=8, heads=2), corpus.vocab)
    before = model.network.embedding.weight.clone()
    initialise_from_cooccurrence(model, corpus)
    after = model.network.embedding.weight
    for name in corpus.vocab.names(range(14)):
        row = int(model.bloom.digest(corpus.vocab.id(name))[0])
        assert torch.equal(before[row], after[row]) == name.startswith("new"), name
    assert torch.isfinite(after).all()


def test_a_second_vocabulary_starts_from_what_it_goes_with(ring_corpus):
    names = [ring_corpus.vocab.names(ring_corpus.row(row)) for row in range(len(ring_corpus))]
    corpus = Corpus.from_sequences(names, targets=[[name.split(" name")[0] for name in row] for row in names])
    superbloom = Superbloom(**SMALL).fit(corpus, **STILL)
    assert superbloom.evaluate(corpus)["recall"]["1"]["value"] > 0.8


def test_only_some_names_and_links_are_counted_where_there_are_many(ring_corpus):
    whole = similarity(ring_corpus)
    assert similarity(ring_corpus, max_names=10).shape == (10, 10)
    fewer = similarity(ring_corpus, max_links=100)
    assert fewer.shape == whole.shape
    assert 0 < fewer.nnz < whole.nnz
    assert (similarity(ring_corpus, max_links=10**9) != whole).nnz == 0


def test_biases_start_at_token_frequencies(ring_corpus):
    model = started(ring_corpus)
    initialise_from_frequencies(model, ring_corpus)
    counts = ring_corpus.id_counts("train")
    members = model.target_bloom.members[1][3].numpy()
    biases = model.network.bias.detach().view(2, -1)[1].exp()
    share = (counts[members].sum() + 1) / (counts.sum() + model.target_bloom.num_buckets)
    assert float(biases[3] / biases.sum()) == pytest.approx(share, rel=1e-4)
