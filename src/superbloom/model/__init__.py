"""The network, its hash functions and names, its losses and its output layer."""

from superbloom.model.head import Head
from superbloom.model.loss import Sampler, full_softmax_loss, piece_shape, sampled_softmax_loss
from superbloom.model.model import Model, check_vocabulary
from superbloom.model.network import Layer, Network
from superbloom.model.prior import Prior, surplus, training_counts

__all__ = [
    "Head",
    "Layer",
    "Model",
    "Network",
    "Prior",
    "Sampler",
    "check_vocabulary",
    "full_softmax_loss",
    "piece_shape",
    "sampled_softmax_loss",
    "surplus",
    "training_counts",
]
