"""The network against torch's own layer, its symmetries, and the paper's parameter counts."""

import pytest
import torch
from torch import nn

from superbloom.config.model import ModelConfig
from superbloom.config.presets import PRESETS
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.model.model import Model
from superbloom.model.network import Layer, Network
from superbloom.special import Special

# How far our count is from the printed one, where it is more than the rounding of two or three digits.
# The paper does not say which parts it counts; docs/paper-to-code.md has the table and the guesses.
TOLERANCE = dict.fromkeys(PRESETS, 0.006) | {
    "sampled-softmax": 0.017,
    "superbloom-d256l12": 0.018,
    "superbloom-d384l1": 0.039,
    "superbloom": 0.034,
}


def small(**options) -> Model:
    torch.manual_seed(0)
    vocab = Vocab.from_counts({f"name {i}": 100 - i for i in range(40)})
    sizes = {"num_ids": 40, "alpha": 3, "dim": 16, "heads": 2, "ffn_dim": 24, "seq_len": 8}
    model = Model.create(ModelConfig(**sizes | options), vocab)
    for parameter in model.network.parameters():  # large enough to tell right from wrong
        nn.init.normal_(parameter, std=0.3)
    model.network.eval()
    return model


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_layer_equals_torchs_own_with_the_same_weights(norm):
    torch.manual_seed(0)
    ours = Layer(dim=12, heads=3, ffn_dim=20, dropout=0.0, pre_norm=norm == "pre")
    theirs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        pairs = [
            (theirs.self_attn.out_proj, ours.mix),
            (theirs.linear1, ours.widen),
            (theirs.linear2, ours.narrow),
            (theirs.norm1, ours.attention_norm),
            (theirs.norm2, ours.ffn_norm),
        ]
        for their, our in pairs:
            their.load_state_dict(our.state_dict())
    x = torch.randn(4, 6, 12)
    padding = torch.arange(6) >= torch.tensor([6, 5, 2, 1])[:, None]
    expected = theirs(x, src_key_padding_mask=padding)
    found = ours(x, x, ~padding[:, None, None])
    assert torch.allclose(found[~padding], expected[~padding], atol=1e-5)


PAPER = {"inputs": "tokens", "mask_as": "element", "distance": False}


@pytest.mark.parametrize(
    "options",
    [
        {},
        PAPER | {"norm": "post", "transform": True},
        {"positions": True},
        PAPER | {"positions": True},
        {"layers": 1},
        {"mask_as": "element"},
        {"inputs": "tokens"},
    ],
    ids=str,
)
def test_the_last_layer_at_some_places_equals_all_places(options):
    model = small(**options)
    ids = torch.tensor([[3, 7, Special.MASK, 9], [1, Special.MASK, 5, Special.PAD]])
    everywhere = model.encode(ids, torch.arange(4).expand(2, 4))
    some = model.encode(ids, torch.tensor([[2, 0], [1, 1]]))
    assert torch.allclose(some[0], everywhere[0, [2, 0]], atol=1e-5)
    assert torch.allclose(some[1, 0], everywhere[1, 1], atol=1e-5)


@pytest.mark.parametrize("options", [PAPER, {"distance": False}], ids=str)
def test_without_positions_permuting_the_input_permutes_the_output(options):
    model = small(**options)
    ids = torch.tensor([[4, 8, 15, 16, 23, Special.MASK]])
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    everywhere = torch.arange(6)[None]
    assert torch.allclose(model.encode(ids, everywhere)[:, order], model.encode(ids[:, order], everywhere), atol=1e-5)


@pytest.mark.parametrize("options", [{"positions": True, "distance": False}, PAPER | {"positions": True}, {}], ids=str)
def test_with_positions_or_distance_order_matters(options):
    model = small(**options)
    places = torch.tensor([[2]])
    one = model.encode(torch.tensor([[4, 8, Special.MASK]]), places)
    other = model.encode(torch.tensor([[8, 4, Special.MASK]]), places)
    assert not torch.allclose(one, other, atol=1e-3)
    if model.network.position is not None:  # the tokens of an element share one
        assert model.network.position.weight.shape == (8, 16)


@pytest.mark.parametrize("mask_as", ["question", "element"])
def test_distance_alone_counts_wherever_a_segment_lies(mask_as):
    """The same neighbours, one place further on: the same answer; mirrored: another."""
    model = small(mask_as=mask_as)
    here = model.encode(torch.tensor([[4, Special.MASK, 8, 9]]), torch.tensor([[1]]))
    mirrored = model.encode(torch.tensor([[9, 8, Special.MASK, 4]]), torch.tensor([[2]]))
    assert not torch.allclose(here, mirrored, atol=1e-3)
    if mask_as == "question":  # a second mask is no element, and shifts the others
        shifted = model.encode(torch.tensor([[Special.MASK, 4, Special.MASK, 8, 9]]), torch.tensor([[2]]))
        assert torch.allclose(here, shifted, atol=1e-5)


def test_a_head_attends_by_distance_as_its_table_says():
    """With a table that allows only the element right before, the others have no say."""
    model = small(layers=1)
    table = model.network.layers[0].distance
    with torch.no_grad():
        table.fill_(-torch.inf)
        table[:, 8 - 1] = 0.0
    place = torch.tensor([[2]])
    one = model.encode(torch.tensor([[4, 8, Special.MASK, 9]]), place)
    assert torch.allclose(one, model.encode(torch.tensor([[5, 8, Special.MASK, 7]]), place), atol=1e-6)
    assert not torch.allclose(one, model.encode(torch.tensor([[4, 7, Special.MASK, 9]]), place), atol=1e-3)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mask_as", ["question", "element"])
@pytest.mark.usefixtures("two_threads")
def test_gradients_are_the_same_to_the_bit_on_several_threads(mask_as):
    """Indexing would add up gradients by distance in no fixed order: 64 · 2 · 32 · 32 of them, in two threads."""
    model = small(seq_len=32, mask_as=mask_as)
    torch.manual_seed(0)
    ids, places = torch.randint(40, (64, 32)), torch.randint(32, (64, 5))
    ids[::2, 20:] = Special.PAD
    found = []
    for _ in range(6):
        model.network.zero_grad()
        model.encode(ids, places).square().sum().backward()
        found.append(
            {name: part.grad.clone() for name, part in model.network.named_parameters() if part.grad is not None}
        )
    assert found[0]["layers.0.distance"].abs().sum() > 0
    for other in found[1:]:
        for name, gradient in found[0].items():
            assert torch.equal(gradient, other[name]), name


@pytest.mark.parametrize("inputs", ["sum", "tokens"])
def test_a_bag_of_digests_counts_all_elements_alike(inputs):
    model = small(attend=False, distance=False, layers=1, inputs=inputs, norm="post", mask_as="element")
    layer, ids = model.network.layers[0], torch.tensor([[3, 7, 11, Special.MASK, Special.PAD]])
    y = model.encode(ids, torch.tensor([[3]]))[0, 0]
    x = model.network.embedding(model.bloom.digest(ids[0, :4]))
    x = x.sum(1) if inputs == "sum" else x.flatten(0, 1)
    mean = layer.mix(layer.key_value(x).mean(0))
    hidden = layer.attention_norm(x[3 if inputs == "sum" else [6, 7]] + mean)
    expected = layer.ffn_norm(hidden + layer.narrow(torch.relu(layer.widen(hidden))))
    torch.testing.assert_close(y, expected.expand_as(y))


def test_a_bag_has_no_weights_to_attend_with():
    sizes = {attend: small(attend=attend).network.num_parameters() for attend in (True, False)}
    assert sizes[True] - sizes[False] == 2 * 2 * (16 * 16 + 16)  # of two layers, queries and keys


@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
def test_a_bag_answers_more_masks_than_it_has_elements(mask_as):
    model = small(attend=False, mask_as=mask_as)
    assert model.encode(torch.full((1, 3), int(Special.MASK)), torch.tensor([[0, 1, 2]])).isfinite().all()


def test_a_lone_mask_has_an_answer():
    log_probs = small().log_probs(torch.tensor([[Special.MASK]]), torch.tensor([[0]]))
    assert torch.isfinite(log_probs).all()


def test_ids_are_read_as_the_sum_of_their_tokens():
    """Moving a vector from one token of an id to its other changes nothing that is read."""
    model = small(layers=1, tied=False)
    first, second = model.bloom.digest(7).tolist()
    ids, places = torch.tensor([[7, Special.MASK]]), torch.tensor([[1]])
    before = model.encode(ids, places)
    with torch.no_grad():
        shift = torch.randn(16)
        model.network.embedding.weight[first] += shift
        model.network.embedding.weight[second] -= shift
    assert torch.allclose(before, model.encode(ids, places), atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_begin_as_long_as_asked(tied):
    network = Network(ModelConfig(num_ids=4000, alpha=2, dim=64, embedding_std=0.3, tied=tied))
    tables = [network.embedding.weight, *([] if network.output is None else [network.output])]
    assert [float(table.detach().std()) for table in tables] == pytest.approx([0.3] * (2 - tied), rel=0.02)
    assert float(network.layers[0].mix.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_padding_changes_nothing():
    model = small()
    short = model.log_probs(torch.tensor([[4, 8, Special.MASK]]), torch.tensor([[2]]))
    ids = torch.tensor([[4, 8, Special.MASK, Special.PAD, Special.PAD], [1, 2, 3, 4, 5]])
    padded = model.log_probs(ids, torch.tensor([[2], [0]]))
    assert torch.allclose(short[0], padded[0], atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_log_probs_are_the_softmax_of_the_output_embedding(tied, bias):
    per_hash, joint = (small(softmax=softmax, tied=tied, output_bias=bias) for softmax in ("per-hash", "joint"))
    joint.network.load_state_dict(per_hash.network.state_dict())
    ids, places = torch.tensor([[4, 8, Special.MASK]]), torch.tensor([[2]])
    y = per_hash.encode(ids, places)[0, 0]  # (m, d)
    weight = (per_hash.network.embedding.weight if tied else per_hash.network.output)[:28]  # two hashes, 14 buckets
    logits = y @ weight.T + (per_hash.network.bias if bias else 0)
    own = torch.stack([logits[0, :14], logits[1, 14:]])
    assert torch.allclose(per_hash.log_probs(ids, places)[0], own.log_softmax(-1), atol=1e-5)
    assert torch.allclose(joint.log_probs(ids, places)[0], own - logits.logsumexp(-1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_papers_parameter_counts(name):
    preset = PRESETS[name]
    with torch.device("meta"):
        ours = Network(preset.config).num_parameters()
    assert abs(ours / preset.printed_parameters - 1) <= TOLERANCE[name]


def test_the_superbloom_row_fits_if_it_had_200k_tokens():
    """Table 1 prints 200K samples where 2N/50 are 211K tokens; with 200K the size is right to 0.5 %."""
    preset = PRESETS["superbloom"]
    with torch.device("meta"):
        ours = Network(preset.config).num_parameters()
    surplus = (preset.config.num_tokens - 200_000) * (preset.config.dim + 1)
    assert abs((ours - surplus) / preset.printed_parameters - 1) < 0.005


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha=0: 1 or more is allowed"),
        ({"heads": 3}, r"heads=3 does not divide dim=128: choose one of \[1, 2, 4"),
        ({"dropout": 1.0}, "dropout=1.0: from 0 to below 1 is allowed"),
        ({"norm": "middle"}, "norm='middle': 'pre' or 'post' is allowed"),
        ({"softmax": "none"}, "softmax='none': 'per-hash' or 'joint' is allowed"),
        ({"inputs": "letters"}, "inputs='letters': 'sum' or 'tokens' is allowed"),
        ({"mask_as": 1}, "mask_as=1: 'question' or 'element' or 'next' is allowed"),
        (
            {"spread": 1, "distance": "far"},
            "spread=1: True or False is allowed; distance='far': True or False is allowed",
        ),
        ({"num_special": 3}, "num_special=3: 4 or more is allowed"),
        (
            {"hash_seed": 0.5, "tied": "yes"},
            "hash_seed=0.5: 0 to 2.63 − 1 is allowed; tied='yes': True or False is allowed",
        ),
        ({"hash_seed": -1}, "hash_seed=-1: 0 to 2.63 − 1 is allowed"),
        ({"target_alpha": 0}, "target_alpha=0: 1 or more is allowed"),
        ({"num_target_ids": 5}, "tied=True with a second vocabulary"),
        ({"alpha": 0, "layers": 0}, "alpha=0.*layers=0"),
    ],
)
def test_configs_that_cannot_work_are_refused_with_all_their_faults(options, message):
    with pytest.raises(InputError, match=message):
        ModelConfig(num_ids=10, **options)
