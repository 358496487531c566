"""Where a server listens, and its limits: the options of `superbloom serve`.

A limit is written here once. The command line is generated from `Settings`, and the limits that GET /v1/model reports
from `PUBLISHED_LIMITS`. The code that applies a limit reads it from a `Settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from superbloom.config.option import POSITIVE, option, settle, whole
from superbloom.errors import InputError, check_key

MIN_KEY_LENGTH = 16  # characters, if other machines can guess keys
# The limits that clients need to know, and their names in the answer of GET /v1/model.
PUBLISHED_LIMITS = {
    "max_k": "k",
    "max_context": "context",
    "max_queries": "queries",
    "max_body": "body_bytes",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Settings:
    """Where a server listens, and its limits. A request above a limit is refused with a line that states the limit."""

    host: str = option("127.0.0.1", "Address to listen on; one that other machines can reach needs a key.")
    port: int = option(8000, "Port to listen on; 0 is any free port.", whole(0, 65535))
    api_key: str | None = None
    workers: int = option(1, "Processes that compute; they share the memory of the weights.", whole(1, 256))
    log_format: Literal["text", "json"] = option(
        "text", "Form of the log: text, or json with a line for each request and message."
    )
    cors: tuple[str, ...] = option((), "Origin of another site whose pages may send requests.")
    max_k: int = option(1000, "Most names of one answer.", whole(1))
    max_context: int | None = option(None, "Most names of one context.", whole(1), shown_default="what the model reads")
    max_queries: int = option(256, "Most contexts of one request.", whole(1))
    max_filter: int = option(10_000, "Most names that a query excludes and allows.", whole(1))
    max_body: int = option(2**20, "Most bytes of one request.", whole(1))
    seconds: float = option(10.0, "Seconds within which a request is answered or refused.", POSITIVE)
    batch: int = option(64, "Most contexts computed together.", whole(1))
    queue: int = option(256, "Most contexts that wait; the server refuses others with 503.", whole(1))
    max_connections: int = option(1000, "Most open connections.", whole(1))
    max_connections_per_address: int = option(  # more than the queue holds, so that one address can fill the queue
        500, "Most open connections of one address; a proxy is one address.", whole(1)
    )

    def __post_init__(self) -> None:
        settle(self)
        if not self.api_key and self.api_key is not None:
            raise InputError("the API key is empty; give a longer key, or leave it out")
        check_key(self.api_key)
        if not self.is_local and self.api_key is not None and len(self.api_key) < MIN_KEY_LENGTH:
            raise InputError(
                f"an API key of {len(self.api_key)} characters given; with --host {self.host} other machines can try "
                f"keys, so at least {MIN_KEY_LENGTH} are needed: openssl rand -hex 16 makes one"
            )
        if not self.is_local and self.api_key is None:
            raise InputError(
                f"--host {self.host} lets other machines send requests; give an --api-key (or SUPERBLOOM_API_KEY), "
                "or listen on 127.0.0.1"
            )
        for origin in self.cors:
            if not origin.startswith(("http://", "https://")) or "*" in origin or origin.count("/") != 2:
                raise InputError(f"--cors {origin} given; an origin like https://example.org is allowed")

    @property
    def is_local(self) -> bool:
        """Whether no other machine can reach the server."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
