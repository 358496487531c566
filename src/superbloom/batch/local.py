"""Recommendations on this machine: in this process, or in a pool of processes. Rows come in the order of the users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from superbloom.batch.arrow import ArrowRecommender
from superbloom.prepare.workers import Pool

PIECE_USERS = 1024  # that a process is given at a time


class Piece(NamedTuple):
    """Histories in the bytes of Arrow's stream format, which take memory while they wait."""

    users: int
    data: bytes | None


@dataclass(frozen=True)
class Answering:
    """What a process does with pieces. model: a folder. options: those of recommend_arrow."""

    model: str
    options: dict[str, Any]

    def start(self) -> Callable[[Piece], bytes]:
        import torch

        torch.set_num_threads(1)
        recommender = ArrowRecommender(self.model, **self.options)
        return lambda piece: _packed(recommender(_unpacked(piece.data or b"")))


def recommend_locally(
    batches: Iterator[pa.RecordBatch], model: str, options: dict[str, Any], processes: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The number of users and the rows of each piece of the batches."""
    pieces = (batch.slice(start, PIECE_USERS) for batch in batches for start in range(0, batch.num_rows, PIECE_USERS))
    if processes == 1:
        recommender = ArrowRecommender(model, **options)
        for piece in pieces:
            yield piece.num_rows, recommender(piece)
        return
    with Pool(processes, "ask with fewer --processes") as pool:
        task = Answering(model, options)
        for piece, found in pool.run(task, (Piece(batch.num_rows, _packed(batch)) for batch in pieces)):
            yield piece.users, _unpacked(found)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _unpacked(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()
