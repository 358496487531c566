"""Every option and its default, written once. The command line, Python and HTTP are made from these classes."""

from superbloom.config.batch import BatchOptions
from superbloom.config.model import MAX_HASHES, MAX_SEQ_LEN, SIZES, ModelConfig, with_proportions
from superbloom.config.option import check_known, document, environment_name, make
from superbloom.config.presets import PRESET_NAMES, PRESETS, RECIPES, Preset, preset_options, split_options
from superbloom.config.query import (
    RARELY_REPEATED,
    EvaluateOptions,
    ExtendOptions,
    HeadOptions,
    QueryOptions,
    RecommendOptions,
    SearchOptions,
    SimilarOptions,
)
from superbloom.config.readers import (
    HISTORY_OPTIONS,
    InteractionsOptions,
    SequencesOptions,
    SyntheticOptions,
    TextOptions,
    WikipediaOptions,
)
from superbloom.config.serving import Settings
from superbloom.config.training import COUNT_OPTIONS, TrainConfig, train_config
from superbloom.config.writing import WriteOptions

__all__ = [
    "COUNT_OPTIONS",
    "HISTORY_OPTIONS",
    "MAX_HASHES",
    "MAX_SEQ_LEN",
    "PRESETS",
    "PRESET_NAMES",
    "RARELY_REPEATED",
    "RECIPES",
    "SIZES",
    "BatchOptions",
    "EvaluateOptions",
    "ExtendOptions",
    "HeadOptions",
    "InteractionsOptions",
    "ModelConfig",
    "Preset",
    "QueryOptions",
    "RecommendOptions",
    "SearchOptions",
    "SequencesOptions",
    "Settings",
    "SimilarOptions",
    "SyntheticOptions",
    "TextOptions",
    "TrainConfig",
    "WikipediaOptions",
    "WriteOptions",
    "check_known",
    "document",
    "environment_name",
    "make",
    "preset_options",
    "split_options",
    "train_config",
    "with_proportions",
]
