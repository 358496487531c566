"""Bloom digests of ids: hash functions, their construction and their growth."""

from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import check_sizes, max_alpha
from superbloom.hashing.growth import RESERVE, extended, room_for_more

__all__ = [
    "RESERVE",
    "BloomHash",
    "check_sizes",
    "extended",
    "max_alpha",
    "room_for_more",
]
