"""Names in, names out."""

from superbloom.predict.explain import facts_of
from superbloom.predict.predictor import Predictor
from superbloom.predict.query import Query, padded, parts

__all__ = [
    "Predictor",
    "Query",
    "facts_of",
    "padded",
    "parts",
]
