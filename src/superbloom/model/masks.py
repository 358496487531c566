"""How [MASK] is modelled (the option mask_as): which elements the network reads, and which element is asked at a place.

    ids (batch, n), places (batch, p)  →  Reading: elements (batch, e), where they stand, which are padding, and asked

question   all masks of a segment are one element; the last layer queries it once per place (not in the paper)
element    every mask is an element at its place, as in BERT and in the paper
next       elements are read in order, and each is asked what follows it

This is the one place that knows the three: the network, the batches and the plan read the attributes of a scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from superbloom.special import Special

NO_PLACE = -1  # the place of an element without a position


class Reading(NamedTuple):
    """What the network reads for a batch of segments."""

    elements: Tensor  # (batch, e) ids
    where: Tensor  # (batch, e), or one row for all: the place of each element
    padding: Tensor  # (batch, e) True where an element is not attended to
    asked: Tensor  # (batch, p) the column of the element that answers for each place


@dataclass(frozen=True)
class MaskScheme:
    """One way to model masks.

    is_ordered: elements attend only to themselves and to those before them, and every element is a target. adds_place:
    the query of the last layer gets the position of the place that it asks for. masked_share: the share of the chosen
    elements that training masks; BERT replaces or keeps the others.
    """

    read: Callable[[Tensor, Tensor], Reading]
    is_ordered: bool = False
    adds_place: bool = False
    masked_share: float = 1.0

    def sizes(self, n: int, masked: int) -> tuple[int, int]:
        """The number of elements that are read of n, `masked` of them masked, and the number of places predicted."""
        if self.is_ordered:
            return n + 1, n
        return (n - masked + 1 if self.adds_place else n), masked

    def context(self, ids: Tensor, places: Tensor) -> Tensor:
        """The ids that each place sees, (batch, p, n), each in its column: of other places, or of earlier ones.

        Special ids and what is not seen are −1.

        >>> ids, places = torch.tensor([[7, Special.MASK, 5]]), torch.tensor([[1]])
        >>> [SCHEMES[name].context(ids, places).tolist() for name in ("question", "next")]
        [[[[7, -1, 5]]], [[[7, -1, -1]]]]
        """
        column, place = torch.arange(ids.shape[1], device=ids.device), places[..., None]
        is_seen = column < place if self.is_ordered else column != place
        return torch.where(is_seen & (ids >= 0)[:, None], ids[:, None], -1)


def _read_question(ids: Tensor, places: Tensor) -> Reading:
    elements, where = with_one_mask(ids)
    return Reading(elements, where, elements == Special.PAD, torch.zeros_like(places))


def _read_element(ids: Tensor, places: Tensor) -> Reading:
    return Reading(ids, torch.arange(ids.shape[1], device=ids.device)[None], ids == Special.PAD, places)


def _read_next(ids: Tensor, places: Tensor) -> Reading:
    # [CLS] comes first. Only masks are padding: attention looks back, so [PAD] at the end is never attended to.
    elements, where = F.pad(ids, (1, 0), value=Special.CLS), torch.arange(NO_PLACE, ids.shape[1])[None]
    padding = elements == Special.MASK
    known = torch.arange(elements.shape[1], device=ids.device).masked_fill(padding, 0).cummax(1).values
    return Reading(elements, where, padding, known.gather(1, places))  # the last element before that is no mask


def with_one_mask(ids: Tensor) -> tuple[Tensor, Tensor]:
    """[MASK] at NO_PLACE, then the other elements of a segment and their places, without masks and with little padding.

    >>> with_one_mask(torch.tensor([[Special.MASK, 7, Special.MASK, 5], [4, Special.PAD, Special.PAD, Special.PAD]]))
    (tensor([[-2,  7,  5],
            [-2,  4, -1]]), tensor([[-1,  1,  3],
            [-1,  0,  1]]))
    """
    seen = (ids != Special.PAD) & (ids != Special.MASK)
    places = (~seen).byte().argsort(dim=1, stable=True)[:, : int(seen.sum(1).max())]
    elements = ids.gather(1, places).masked_fill(~seen.gather(1, places), Special.PAD)
    return F.pad(elements, (1, 0), value=Special.MASK), F.pad(places, (1, 0), value=NO_PLACE)


SCHEMES = {
    "question": MaskScheme(_read_question, adds_place=True),
    "element": MaskScheme(_read_element, masked_share=0.8),  # Sec. 3.1: 80 % masked, 10 % replaced, 10 % kept
    "next": MaskScheme(_read_next, is_ordered=True),
}
