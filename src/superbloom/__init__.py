"""Superbloom: a Transformer over Bloom digests, for catalogues too large for a softmax.

Names are imported on first use, so that `import superbloom` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from superbloom.runtime import threads
from superbloom.version import __version__ as __version__

if TYPE_CHECKING:
    from superbloom.answers import Prediction
    from superbloom.api import Superbloom
    from superbloom.batch import recommend_arrow
    from superbloom.client import Client
    from superbloom.config import PRESETS, ModelConfig, TrainConfig
    from superbloom.corpus import Vocab
    from superbloom.errors import InputError
    from superbloom.hashing import BloomHash
    from superbloom.predict import Predictor
    from superbloom.prepare.corpus import Corpus
    from superbloom.search import Bonus, IdPrior, TopK, exhaustive, top_k
    from superbloom.special import MASK

threads.set_defaults()

_HOME = {
    "Superbloom": "api",
    "PRESETS": "config",
    "ModelConfig": "config",
    "TrainConfig": "config",
    "Corpus": "prepare.corpus",
    "InputError": "errors",
    "BloomHash": "hashing",
    "Client": "client",
    "MASK": "special",
    "Prediction": "answers",
    "Predictor": "predict",
    "Bonus": "search",
    "IdPrior": "search",
    "TopK": "search",
    "exhaustive": "search",
    "recommend_arrow": "batch",
    "top_k": "search",
    "Vocab": "corpus",
}
__all__ = [
    "MASK",
    "PRESETS",
    "BloomHash",
    "Bonus",
    "Client",
    "Corpus",
    "IdPrior",
    "InputError",
    "ModelConfig",
    "Prediction",
    "Predictor",
    "Superbloom",
    "TopK",
    "TrainConfig",
    "Vocab",
    "exhaustive",
    "recommend_arrow",
    "top_k",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'superbloom' has no attribute {name!r}")
    return getattr(import_module(f"superbloom.{_HOME[name]}"), name)
