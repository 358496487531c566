"""Every option and its default, written once. The command line, Python and HTTP are made from these classes."""

from superbloom.config.model import LONGEST_SEGMENT, MOST_HASHES, SIZES, ModelConfig
from superbloom.config.presets import PRESET_NAMES, PRESETS, Preset, preset_options, split_options
from superbloom.config.serving import Settings
from superbloom.config.training import TrainConfig

__all__ = [
    "LONGEST_SEGMENT",
    "MOST_HASHES",
    "PRESETS",
    "PRESET_NAMES",
    "SIZES",
    "ModelConfig",
    "Preset",
    "Settings",
    "TrainConfig",
    "preset_options",
    "split_options",
]
