"""The model (Sec. 2.1–2.4, App. A): network.py the Transformer, model.py the network with its hash functions and names.

loss.py has the training losses, head.py the output layer for serving, and prior.py the bonus for frequent ids.
extend.py adds names to a trained model.
"""

from superbloom.model.head import Head
from superbloom.model.loss import Sampler, full_softmax_loss, piece_shape, sampled_softmax_loss
from superbloom.model.model import Model, check_vocabulary
from superbloom.model.network import Layer, Network
from superbloom.model.prior import Prior

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
]
