"""Bloom digests of ids (Sec. 2.1, 3.2, App. D): m tokens name one id.

bloom.py has the hash functions and their tables, construct.py and coherent.py build the tables, and growth.py adds ids
to them later.
"""

from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import check_sizes, max_alpha
from superbloom.hashing.growth import extended, is_hashed, room_for_more

__all__ = [
    "BloomHash",
    "check_sizes",
    "extended",
    "is_hashed",
    "max_alpha",
    "room_for_more",
]
