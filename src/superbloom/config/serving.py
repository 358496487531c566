"""What a server allows, and where it listens; every default of `superbloom serve` that is not the model's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from ipaddress import ip_address

from superbloom.errors import InputError, check_key

MIN_KEY_LENGTH = 16  # characters, where other machines can try keys


@dataclass(frozen=True)
class Settings:
    """Limits of a server; a request beyond one is refused with a line that names it."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    cors: tuple[str, ...] = ()  # origins of other pages that may ask
    max_k: int = 1000
    max_context: int | None = None  # names of one context; None is what the model reads
    max_queries: int = 256  # in one request
    max_filter: int = 10_000  # names that one query excludes or allows
    max_body: int = 2**20  # bytes
    seconds: float = 10.0  # for one request
    batch: int = 64  # contexts that are computed together
    queue: int = 256  # contexts that may wait
    max_connections: int = 1000
    max_connections_per_address: int = 500  # more than may wait in the queue

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and field.name != "port" and not 0 < value < math.inf:
                raise InputError(f"{field.name}={value} given; a number above 0 is allowed")
        if not self.api_key and self.api_key is not None:
            raise InputError("the API key is empty; give one of some length, or none at all")
        check_key(self.api_key)
        if not self.is_local and self.api_key is not None and len(self.api_key) < MIN_KEY_LENGTH:
            raise InputError(
                f"an API key of {len(self.api_key)} characters given; with --host {self.host} other machines can try "
                f"keys, so at least {MIN_KEY_LENGTH} are needed: openssl rand -hex 16 makes one"
            )
        if not self.is_local and self.api_key is None:
            raise InputError(
                f"--host {self.host} lets other machines ask; give an --api-key (or SUPERBLOOM_API_KEY), "
                "or listen on 127.0.0.1"
            )
        for origin in self.cors:
            if not origin.startswith(("http://", "https://")) or "*" in origin or origin.count("/") != 2:
                raise InputError(f"--cors {origin} given; an origin like https://example.org is allowed")

    @property
    def is_local(self) -> bool:
        """Whether no other machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
