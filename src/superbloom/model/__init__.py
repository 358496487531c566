"""The model (Sec. 2.1–2.4, App. A): network.py the Transformer, model.py the network with its hash functions and names.

loss.py has the training losses, and head.py the output layer for serving. prior.py has what frequency says about ids,
repetition.py what the context says about its own ids. extend.py adds names to a trained model.
"""

from superbloom.model.head import Head
from superbloom.model.loss import Sampler, full_softmax_loss, piece_shape, sampled_softmax_loss
from superbloom.model.model import Model, check_vocabulary
from superbloom.model.network import Layer, Network
from superbloom.model.prior import Prior
from superbloom.model.repetition import Repetition

__all__ = [
    "Head",
    "Layer",
    "Model",
    "Network",
    "Prior",
    "Repetition",
    "Sampler",
    "check_vocabulary",
    "full_softmax_loss",
    "piece_shape",
    "sampled_softmax_loss",
]
