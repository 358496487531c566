"""The training objective (Sec. 2.4): batch → loss, the mean cross-entropy of the tokens of the hidden ids.

`Objective` is one module from digests to loss, so that sharded weights are whole while it runs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import room_for
from superbloom.model import Model, Sampler, full_softmax_loss, sampled_softmax_loss
from superbloom.training.batches import Batch


class Objective(nn.Module):
    """The loss of a batch."""

    # subtle: checkpoints store the weights as objective.network.…; the attribute keeps its name.
    def __init__(self, model: Model, config: TrainConfig, corpus: Corpus) -> None:
        super().__init__()
        self.network = model.network
        self.model, self.config = model, config
        self.sampler: Sampler | None = None
        if config.loss == "sampled":
            counts_of_tokens = corpus.id_counts("train")[model.target_bloom.order[0].numpy()]
            self.sampler = Sampler(config.proposal, counts_of_tokens, config.samples, config.log_q)

    def forward(self, batch: Batch, processes: int, seed: int) -> Tensor:
        """This process's part of the mean loss over the targets of all processes.

        The part is multiplied by the number of processes, because their gradients will be averaged.
        """
        ids, places, targets, total, follows = batch
        if follows is not None:  # [CLS], at place 0, answers whether the second part follows
            places = F.pad(places, (1, 0))
        with room_for(f"the activations of {len(ids)} segments", "lower --batch-size, --seq-len, --dim or --layers"):
            y = self.model.encode(ids, places)
        predicted = y if follows is None else y[:, 1:]
        with room_for("the loss", "lower --logits-mb or --batch-size, or raise --alpha"):
            loss = self.loss(predicted[targets >= 0], targets[targets >= 0], seed)
        loss = loss * (processes / (total * self.model.config.num_hashes))
        if follows is not None:
            assert self.network.follows is not None
            logits = self.network.follows(y[:, 0, 0])
            next_sentence_loss = F.cross_entropy(logits, follows, ignore_index=-1, reduction="sum")
            loss = loss + next_sentence_loss * (processes / self.config.batch_size)
        return loss

    def loss(self, y: Tensor, targets: Tensor, seed: int) -> Tensor:
        """Summed cross-entropy of the tokens of targets (q,) under y (q, m, d)."""
        network, bloom, config = self.network, self.model.target_bloom, self.model.config
        table = network.embedding.weight if network.output is None else network.output
        tokens = bloom.buckets(targets.to(bloom.table.device)).to(y.device).T  # (m, q)
        y = y.transpose(0, 1)  # (m, q, d)
        if self.sampler is not None:  # one hash function; all processes draw the same negatives
            budget, sparse = self.config.logits_mb, network.embedding.sparse
            return sampled_softmax_loss(y[0], table, network.bias, tokens[0], self.sampler, budget, seed, sparse)
        size = config.output_buckets
        if config.softmax == "joint":
            tokens = (tokens + size * torch.arange(config.num_hashes, device=tokens.device)[:, None]).reshape(1, -1)
            y, size = y.reshape(1, -1, config.dim), size * config.num_hashes
        return full_softmax_loss(y, table, network.bias, tokens, size, self.config.logits_mb)
