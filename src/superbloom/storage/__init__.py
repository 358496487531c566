"""Folders that are written whole and verified when opened, Arrow files, and locks."""

from superbloom.storage.arrow import read_arrow, write_arrow
from superbloom.storage.atomic import fsync, read_consistently, swap, write_atomically, written_atomically
from superbloom.storage.folder import (
    CARD_FILE,
    MANIFESTS,
    OPTIONAL_FILES,
    REQUIRED_FILES,
    already_there,
    check_replaceable,
    leads_out,
    new_folder,
    only_writer,
    read_folder,
    read_json,
    sha256,
)
from superbloom.storage.locks import close_inherited_locks, locked
from superbloom.storage.mapped import Mapped, Version, version
from superbloom.storage.temporary import remove_dead, temporary_prefix

__all__ = [
    "CARD_FILE",
    "MANIFESTS",
    "OPTIONAL_FILES",
    "REQUIRED_FILES",
    "Mapped",
    "Version",
    "already_there",
    "check_replaceable",
    "close_inherited_locks",
    "fsync",
    "leads_out",
    "locked",
    "new_folder",
    "only_writer",
    "read_arrow",
    "read_consistently",
    "read_folder",
    "read_json",
    "remove_dead",
    "sha256",
    "swap",
    "temporary_prefix",
    "version",
    "write_arrow",
    "write_atomically",
    "written_atomically",
]
