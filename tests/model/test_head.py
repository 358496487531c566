"""The output layer in each precision against fp32: within the rounding of its numbers, the same in any batch."""

import pytest
import torch

from superbloom.config.model import ModelConfig
from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.model.head import INT8_INPUT_LEVELS, PRODUCTS, Head
from superbloom.model.network import Network
from superbloom.search.certified import top_k

SHAPES = [
    {"num_hashes": m, "alpha": 1 if m == 1 else 3, "softmax": softmax, "tied": tied, "output_bias": bias}
    for m in (1, 2, 3)
    for softmax in ("per-hash", "joint")
    for tied in (True, False)
    for bias in (True, False)
]


def network_of(num_ids: int = 300, dim: int = 32, std: float = 0.2, **options) -> Network:
    """A network whose output layer has weights of the size that training gives them."""
    network = Network(ModelConfig(num_ids=num_ids, dim=dim, heads=2, ffn_dim=16, layers=1, **options))
    random = torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=std, generator=random)
    return network.eval()


def outputs(network: Network, queries: int) -> torch.Tensor:
    """y (q, m, d), with some rows much larger than others, as from a network without a final norm."""
    config, random = network.config, torch.manual_seed(1)
    y = torch.randn(queries, config.num_hashes, config.dim, generator=random)
    return y * torch.logspace(-1, 0.5, queries)[:, None, None]


def largest_error(network: Network, y: torch.Tensor, precision: str) -> torch.Tensor:
    """The largest error of a log-probability, (q, 1, 1), that rounding of weights and inputs explains."""
    weight = network.output_layer()[0].detach().flatten(0, 1).double()  # (tokens, d)
    y = y.double()
    if precision == "bf16":  # 8 bits: a weight is off by a 2^−9 part at most
        error = 2**-9 * (y.abs() @ weight.abs().T) * 1.01
    else:  # half a step of each number
        of_y = y.abs().amax(dim=-1, keepdim=True) / (2 * INT8_INPUT_LEVELS)
        of_weight = weight.abs().amax(dim=-1) / (2 * 127)
        both = weight.shape[1] * of_y * of_weight
        error = of_y * weight.abs().sum(dim=-1) + y.abs().sum(dim=-1, keepdim=True) * of_weight + both
    return 2 * error.amax(dim=(1, 2))[:, None, None] + 1e-5  # of the logit itself, and of what it is normalised by


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_log_probs_are_as_near_to_fp32_as_their_rounding_allows(shape, precision):
    network = network_of(**shape)
    y = outputs(network, 12)
    with torch.inference_mode():
        expected = network.log_probs(y)
    found = Head(network, precision).log_probs(y)
    assert found.shape == expected.shape == (12, network.config.num_hashes, network.config.output_buckets)
    assert found.dtype == torch.float32
    error = (found - expected).abs()
    assert (error <= largest_error(network, y, precision)).all()
    # Errors of either sign cancel: on the whole they are much smaller than at worst.
    assert error.mean() < 0.01 * expected.std()
    assert not torch.equal(found, expected)
    if shape["softmax"] == "per-hash":
        assert torch.allclose(found.logsumexp(-1), torch.zeros(12, network.config.num_hashes), atol=1e-5)


@pytest.mark.parametrize("num_hashes", [2, 3])
def test_int8_spends_all_of_its_levels(num_hashes):
    """The mean square of its errors is that of numbers rounded to 127 and 63 levels: a twelfth of a step²."""
    network = network_of(num_hashes=num_hashes, alpha=3, output_bias=False)
    y, weight = outputs(network, 40), network.output_layer()[0].detach()
    step_y = y.abs().amax(dim=-1, keepdim=True) / INT8_INPUT_LEVELS  # (q, m, 1)
    step_weight = weight.abs().amax(dim=-1) / 127  # (m, buckets)
    square = (step_y * weight.norm(dim=-1)) ** 2 + (step_weight * y.norm(dim=-1, keepdim=True)) ** 2
    with torch.inference_mode():
        error = Head(network, "int8").log_probs(y) - network.log_probs(y)
    error = error - error.mean(dim=-1, keepdim=True)  # of what the logits are normalised by
    assert 0.85 < (error.square() / (square / 12)).mean() < 1.15


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_fp32_is_what_the_network_itself_gives(shape):
    network = network_of(**shape)
    y = outputs(network, 5)
    with torch.inference_mode():
        assert torch.equal(Head(network).log_probs(y), network.log_probs(y))


@pytest.fixture(scope="module")
def catalogue():
    network = network_of(num_ids=20_000, alpha=4, dim=64, std=0.15)
    return network, BloomHash.random(20_000, 2, 4), torch.randn(40, 2, 64, generator=torch.manual_seed(2))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_nine_of_ten_answers_are_those_of_fp32(catalogue, precision):
    network, bloom, y = catalogue
    expected = top_k(Head(network).log_probs(y), bloom, 20).ids
    found = top_k(Head(network, precision).log_probs(y), bloom, 20).ids
    same = (found[:, :, None] == expected[:, None]).any(dim=2).float().mean(dim=1)
    assert same.mean() >= 0.9
    assert same.min() >= 0.7


@pytest.mark.parametrize("softmax", ["per-hash", "joint"])
def test_an_int8_answer_does_not_depend_on_its_neighbours(softmax):
    network = network_of(num_ids=2000, alpha=4, dim=64, softmax=softmax)
    y, head = outputs(network, 33), Head(network, "int8")
    together = head.log_probs(y)
    for row in range(33):
        assert torch.equal(head.log_probs(y[row : row + 1])[0], together[row])
    order = torch.randperm(33, generator=torch.manual_seed(3))
    assert torch.equal(head.log_probs(y[order]), together[order])


@pytest.mark.parametrize("softmax", ["per-hash", "joint"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_answer_alone_is_that_of_a_batch_up_to_the_last_digit(precision, softmax):
    network = network_of(num_ids=6000, alpha=4, dim=64, softmax=softmax)  # more tokens than are widened together
    y, head = outputs(network, 9), Head(network, precision)
    together = head.log_probs(y)
    alone = torch.cat([head.log_probs(y[row : row + 1]) for row in range(9)])
    assert ((alone - together).abs() <= 1e-5).all()


@pytest.mark.parametrize("precision", PRODUCTS)
def test_zero_weights_and_zero_inputs_give_numbers(precision):
    network = network_of(output_bias=False, tied=False)
    with torch.no_grad():
        network.output[7] = 0.0
    y = outputs(network, 4)
    y[2] = 0.0
    found = Head(network, precision).log_probs(y)
    assert found.isfinite().all()
    buckets = network.config.output_buckets
    assert torch.allclose(found[2], torch.full((2, buckets), 1 / buckets).log(), atol=1e-6)
    # A zero row has the logit 0: all others lie around it.
    with torch.inference_mode():
        expected = network.log_probs(y)
    assert torch.allclose(found[:, 0, 7], expected[:, 0, 7], atol=0.1)
    with torch.no_grad():
        network.output.zero_()
    found = Head(network, precision).log_probs(outputs(network, 4))
    assert torch.allclose(found, torch.full((4, 2, buckets), 1 / buckets).log(), atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rounding_is_relative_to_the_size_of_the_inputs(precision):
    network = network_of(output_bias=False)
    y, head = outputs(network, 6), Head(network, precision)
    large = head.log_probs(2.0**20 * y)
    assert large.isfinite().all()
    logits = torch.einsum("qmd,mbd->qmb", y, network.output_layer()[0].detach())
    missed = logits.amax(-1) - logits.gather(-1, large.argmax(-1, keepdim=True)).squeeze(-1)
    assert (missed <= largest_error(network, y, precision)[..., 0]).all()
    buckets = network.config.output_buckets
    assert torch.allclose(head.log_probs(2.0**-100 * y), torch.full((6, 2, buckets), 1 / buckets).log(), atol=1e-6)


@pytest.mark.parametrize("precision", ["fp8", "", "FP32", None, 8])
def test_an_unknown_precision_is_refused(precision):
    with pytest.raises(InputError, match=f"precision={precision!r} given; fp32, bf16, int8 are allowed"):
        Head(network_of(), precision)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_shapes_without_storage(shape):
    """On the meta device: what a network of the paper's size gives, without its weights."""
    config = ModelConfig(num_ids=5_281_889, dim=48, heads=4, **shape)
    m, buckets = config.num_hashes, config.output_buckets
    with torch.device("meta"):
        network = Network(config).eval()
        tokens, where, places = (torch.zeros(5, *size, dtype=torch.long) for size in ((7, m), (7,), (2,)))
    # subtle: whether there is padding is asked of its values, so it alone lies on the CPU
    y = network.encode(tokens, where, torch.zeros(5, 7, dtype=torch.bool), places, places, where)
    assert (y.shape, y.is_meta) == ((5, 2, m, 48), True)
    y = y.flatten(0, 1)
    assert network.log_probs(y).shape == (10, m, buckets)
    for precision in ("fp32", "bf16"):
        found = Head(network, precision).log_probs(y)
        assert (found.shape, found.dtype, found.is_meta) == ((10, m, buckets), torch.float32, True)
    with pytest.raises(InputError, match="precision='int8' is not available here .*; choose 'bf16' or 'fp32'"):
        Head(network, "int8")
