"""The network: M = O ∘ (T_L ∘ … ∘ T_1) ∘ I (Sec. 2.1–2.3, App. A).

    tokens (batch, e, m)  →  x (batch, elements, d)  →  L layers  →  y (batch, places, m, d)  →  logits

An element is a token, as in the paper, or an id, read as the sum of its m tokens. The last layer computes only the
wanted places. mask_as="question": all masks of a segment are one element, which the last layer queries once per place.
"element": each mask is an element, as in BERT. "next": an element attends to itself and earlier elements, and predicts
the next one. Without distance and positions, the input is a set.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superbloom.config import ModelConfig
from superbloom.model.masks import NO_PLACE, SCHEMES

# Up to this number of queries, a CPU multiplies twice as fast with the weights on the left (docs/search.md).
MAX_QUERIES_ON_THE_RIGHT = 4
OUTPUT_ROWS_AT_ONCE = 1024  # rows of the output weights in one product


class Layer(nn.Module):
    """One Transformer layer: attention A, then feed-forward F, each with residual and norm (App. A).

    Equals torch's nn.TransformerEncoderLayer (tests/model/test_model.py copies its weights), with two additions. There
    may be fewer queries than elements. Each head may learn how much an element counts at each distance (distances).
    Dropout applies to the outputs of A and F, as in the original Transformer. BERT also drops within A and F, which
    takes a third of a step on a CPU. With attend=False, all elements at one distance count alike: a bag of digests.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        ffn_dim: int,
        dropout: float,
        pre_norm: bool,
        distances: int | None = None,
        attend: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.pre_norm = heads, dropout, pre_norm
        self.query = nn.Linear(dim, dim) if attend else None
        self.key_value = nn.Linear(dim, (1 + attend) * dim)
        self.mix = nn.Linear(dim, dim)
        self.widen = nn.Linear(dim, ffn_dim)
        self.narrow = nn.Linear(ffn_dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.distance = None if distances is None else nn.Parameter(torch.empty(heads, distances))

    def forward(self, queries: Tensor, elements: Tensor, mask: Tensor | None, apart: Tensor | None = None) -> Tensor:
        """queries (batch, q, d) attend to elements (batch, k, d); mask (batch, 1, q or 1, k) is True where allowed.

        apart (batch, q, k) has the distance of each pair, as Network._apart numbers it; one row if all are equal.
        """
        if self.distance is not None:
            assert apart is not None
            bias = _looked_up(self.distance, apart)
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        if self.pre_norm:
            everyone = self.attention_norm(elements)
            askers = everyone if queries is elements else self.attention_norm(queries)
            hidden = queries + self._drop(self._attend(askers, everyone, mask))
            return hidden + self._drop(self._feed_forward(self.ffn_norm(hidden)))
        hidden = self.attention_norm(queries + self._drop(self._attend(queries, elements, mask)))
        return self.ffn_norm(hidden + self._drop(self._feed_forward(hidden)))

    def _attend(self, queries: Tensor, elements: Tensor, mask: Tensor | None) -> Tensor:
        if self.query is None:
            value = self._split(self.key_value(elements))
            query, key = torch.zeros_like(self._split(queries)), torch.zeros_like(value)
        else:
            query = self._split(self.query(queries))  # (batch, heads, q, d / heads)
            key, value = map(self._split, self.key_value(elements).chunk(2, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.mix(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.narrow(F.relu(self.widen(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training else x


def _looked_up(table: Tensor, index: Tensor) -> Tensor:
    """table[:, index] as (batch, heads, q, k), from table (heads, distances) and index (batch, q, k).

    subtle: with several threads, gradients of an indexed tensor are added in no fixed order; those of gather are.
    """
    batch, heads = len(index), len(table)
    flat = index.flatten(1)[:, None].expand(-1, heads, -1)
    return table.expand(batch, -1, -1).gather(2, flat).unflatten(2, index.shape[1:])


def dropout(x: Tensor, share: float) -> Tensor:
    """Set a share of x to zero and scale up the rest. On a CPU, the share is rounded to a multiple of 1/256.

    One random byte per entry decides. F.dropout draws a number per entry, which takes four times as long on a CPU.
    """
    level = round(256 * share)
    if x.device.type != "cpu" or not 0 < level < 256:
        return F.dropout(x, share)
    noise = torch.empty(-(-x.numel() // 8), dtype=torch.long, device=x.device)
    kept = noise.random_(-(2**63), None).view(torch.uint8)[: x.numel()].view(x.shape) >= level
    return x * kept.to(x.dtype).mul_(256 / (256 - level))


class Network(nn.Module):
    """Embedding E^I, layers T_1 … T_L, and the output layer with E^O = E^I unless untied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.scheme = config, SCHEMES[config.mask_as]
        self.embedding = _embedding(config.num_tokens, config.dim)
        self.position = _embedding(config.seq_len, config.dim) if config.positions else None
        # BERT's second task: a vector for each part of a segment, and a head that predicts whether B follows A.
        self.side = _embedding(2, config.dim) if config.next_sentence else None
        self.follows = (
            nn.Sequential(nn.Linear(config.dim, config.dim), nn.Tanh(), nn.Linear(config.dim, 2))
            if config.next_sentence
            else None
        )
        self.layers = nn.ModuleList(
            Layer(
                config.dim, config.heads, config.ffn_dim, config.dropout, config.norm == "pre", distances, config.attend
            )
            for distances in [2 * config.seq_len if config.distance else None] * config.layers
        )
        self.final_norm = nn.LayerNorm(config.dim) if config.norm == "pre" else None
        # BERT's transform before the output softmax.
        self.transform = (
            nn.Sequential(nn.Linear(config.dim, config.dim), nn.GELU(), nn.LayerNorm(config.dim))
            if config.transform
            else None
        )
        output_tokens = config.num_hashes * config.output_buckets
        self.output = None if config.tied else nn.Parameter(torch.empty(output_tokens, config.dim))
        self.bias = nn.Parameter(torch.zeros(output_tokens)) if config.output_bias else None
        self._initialise()

    def _initialise(self) -> None:
        if self.embedding.weight.is_meta:  # only shapes are needed; drawing on this device would load torch's compiler
            return
        for name, parameter in self.named_parameters():
            if name.endswith(".distance"):
                parameter.data.copy_(_nearer(*parameter.shape))
            elif parameter.dim() == 2:
                is_embedding = name in ("embedding.weight", "output")
                nn.init.normal_(parameter, std=self.config.embedding_std if is_embedding else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def encode(
        self, tokens: Tensor, where: Tensor, padding: Tensor, asked: Tensor, places: Tensor, sides: Tensor
    ) -> Tensor:
        """y at the wanted places (batch, p, m, d).

        tokens (batch, e, m): the digest of each element.
        where (batch, e), or one row for all: the place of each element. padding (batch, e): True where not attended to.
        asked (batch, p): the column of the element that answers for each of places (batch, p).
        sides (batch, n): 0 or 1, the part of the segment each place is in.
        """
        m, joined = tokens.shape[2], self.config.inputs == "sum"
        x = self.embedding(tokens)  # (batch, e, m, d)
        if joined:
            x = x.sum(2, keepdim=True)
        if self.is_placed:  # one position per element, shared by its m tokens
            x = x + self._position(where, sides)[:, :, None]
        each = x.shape[2]  # m if each token is an element, 1 if each id is
        x = x.flatten(1, 2)  # (batch, e·each, d)
        if self.training:
            x = dropout(x, self.config.dropout)
        where, padding, places = (part.repeat_interleave(each, dim=1) for part in (where, padding, places))
        # Padding is never attended to. Without padding there is no mask, and the attention kernel is faster.
        mask = ~padding[:, None, None] if bool(padding.any()) else None
        *lower, last = self.layers
        apart = self._apart(where, where)
        if self.scheme.is_ordered:
            earlier = _earlier(x.shape[1] // each, each, x.device)
            mask = earlier if mask is None else mask & earlier
            lower = list(self.layers)
        for layer in lower:
            x = layer(x, x, mask, apart)
        wanted = (asked[..., None] * each + torch.arange(each, device=asked.device)).flatten(1)  # (batch, p·each)
        y = x.gather(1, wanted[..., None].expand(-1, -1, x.shape[-1]))
        if self.is_placed and self.scheme.adds_place:  # in other schemes, elements have it already
            y = y + self._position(places, sides)
        if not self.scheme.is_ordered:
            y = last(y, x, mask, self._apart(places, where))
        if self.final_norm is not None:
            y = self.final_norm(y)
        if self.transform is not None:
            y = self.transform(y)
        y = y.unflatten(1, (-1, each))
        return y.expand(-1, -1, m, -1) if joined else y

    @property
    def is_placed(self) -> bool:
        """Whether elements have a position or a side added to them."""
        return self.position is not None or self.side is not None

    def _position(self, where: Tensor, sides: Tensor) -> Tensor:
        """The position vectors of elements at these places (batch, e): (batch, e, d), zero for NO_PLACE."""
        place, there = where.clamp(min=0), (where != NO_PLACE)[..., None]
        x = self.embedding.weight.new_zeros(()) if self.position is None else self.position(place)
        if self.side is not None:
            x = x + self.side(sides.gather(1, place.expand(len(sides), -1)))
        return x * there

    def _apart(self, here: Tensor, there: Tensor) -> Tensor | None:
        """Numbers of the distances between places (batch, q, k): there − here + seq_len, or 0 if one is NO_PLACE."""
        if not self.config.distance:
            return None
        here, there = here[:, :, None], there[:, None]
        return torch.where((here == NO_PLACE) | (there == NO_PLACE), 0, there - here + self.config.seq_len)

    def output_layer(self) -> tuple[Tensor, Tensor | None]:
        """E^O (m, buckets, d) and its bias (m, buckets). Special tokens are never predicted."""
        shape = (self.config.num_hashes, self.config.output_buckets)
        tokens = shape[0] * shape[1]
        weight = self.embedding.weight[:tokens] if self.output is None else self.output
        return weight.unflatten(0, shape), None if self.bias is None else self.bias.unflatten(0, shape)

    def log_probs(self, y: Tensor) -> Tensor:
        """Token log-probabilities p_j over the buckets of hash j, (q, m, buckets), from y (q, m, d) (Sec. 2.3)."""
        weight, _ = self.output_layer()
        if self.config.softmax == "joint":
            return self.normalise(F.linear(y, weight.flatten(0, 1)))
        if len(y) <= MAX_QUERIES_ON_THE_RIGHT:
            return self.normalise(torch.bmm(weight, y.permute(1, 2, 0)).permute(2, 0, 1).contiguous())
        if y.device.type != "cpu":
            return self.normalise(torch.einsum("qmd,mbd->qmb", y, weight))
        logits = y.new_empty(*y.shape[:2], weight.shape[1])
        for j, rows in enumerate(weight):
            _multiply(y[:, j], rows, logits[:, j])
        return self.normalise(logits)

    def normalise(self, logits: Tensor) -> Tensor:
        """Log-probabilities (q, m, buckets) from products y · E^O, normalised per hash, or over all tokens if joint."""
        _, bias = self.output_layer()
        if self.config.softmax == "per-hash":
            return F.log_softmax((logits if bias is None else logits + bias).float(), dim=-1)
        # Joint: y_j is scored against the tokens of all hashes, and hash j keeps its own part.
        joint = F.log_softmax((logits if bias is None else logits + bias.flatten()).float(), dim=-1)
        shape = (self.config.num_hashes, self.config.output_buckets)
        return joint.unflatten(-1, shape).diagonal(dim1=1, dim2=2).movedim(-1, 1)

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def _multiply(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write x · weightᵀ (q, rows) to `out`, some rows at a time: torch copies a large second factor each time."""
    rows, d = OUTPUT_ROWS_AT_ONCE, weight.shape[1]
    whole = len(weight) - len(weight) % rows
    blocks = weight[:whole].view(-1, rows, d).transpose(1, 2) if whole else weight.new_empty(0, d, rows)
    products = torch.bmm(x.expand(len(blocks), *x.shape), blocks)
    out[:, :whole].unflatten(1, (len(blocks), rows)).copy_(products.transpose(0, 1))
    out[:, whole:] = x @ weight[whole:].T


def _earlier(elements: int, each: int, device: torch.device) -> Tensor:
    """The mask (1, 1, q, k) for elements read in order, with `each` columns per element: True where k is not later."""
    element = torch.arange(elements, device=device).repeat_interleave(each)
    return (element[:, None] >= element)[None, None]


def _nearer(heads: int, distances: int) -> Tensor:
    """Initial attention weights by distance, as logs (heads, distances): distance to the power of 0 to −2.

    >>> _nearer(3, 4).exp().tolist()          # no place; one before; itself; one after
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    >>> _nearer(3, 8).exp()[:, -1].tolist()   # three after
    [1.0, 0.333..., 0.111...]
    """
    apart = (torch.arange(distances) - distances // 2).abs().clamp(min=1).float()
    apart[0] = 1.0
    return -torch.linspace(0, 2, heads)[:, None] * apart.log()


def _embedding(rows: int, dim: int) -> nn.Embedding:
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))  # Network initialises it
