"""Names in, names out."""

from superbloom.predict.beliefs import Beliefs, Remembered
from superbloom.predict.explain import facts_of
from superbloom.predict.predictor import Predictor
from superbloom.predict.query import Query, padded, parts
from superbloom.predict.similar import similar

__all__ = [
    "Beliefs",
    "Predictor",
    "Query",
    "Remembered",
    "facts_of",
    "padded",
    "parts",
    "similar",
]
