"""Names in, names out: the one way to ask a model, used by Python, the command line and the evaluation.

names with [MASK]  →  ids (1, n)  →  token log-probabilities  →  certified top-k  →  names, one list a mask

A model of text also takes a text: it is segmented (text.py) and stands between [CLS] and [SEP], as in training.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from superbloom.answers import Found, Prediction
from superbloom.corpus import READING
from superbloom.errors import InputError, check_whole
from superbloom.model import Head, Model
from superbloom.predict.explain import explain
from superbloom.predict.query import Query, padded, parts
from superbloom.search import Bonus, Combine, TopK, is_sum, top_k
from superbloom.special import MASK_TEXT, Special

MASKS = re.compile(r"\[MASK\d*\]")  # in a text; the paper numbers them: [MASK1], [MASK2]
# Memory for the token log-probabilities of queries that are ranked together, and how many those are at most.
CHUNK_BYTES = 128 * 2**20
CHUNK = 256
FEWEST = 64  # distributions that one query may take, whatever their size
MOST_REASONS = 200  # answers of one query that are explained
LONGEST_ENTRY = 200  # characters: a text of more for each place is not read


class Predictor:
    """Answers queries with a model.

    precision is how the output weights are held: fp32, bf16 or int8 (docs/search.md). prior=False leaves out the
    frequency of ids that was weighed in after training. A text "[MASK]" means the mask unless the catalogue has
    that very name; MASK always means it.

    >>> from superbloom import MASK, Corpus, Superbloom
    >>> corpus = Corpus.from_sequences([["Copenhagen", "Denmark", "Oslo"], ["Oslo", "Norway", "Denmark"]] * 8)
    >>> model = Superbloom(alpha=2, dim=16, ffn_dim=16).fit(corpus, steps=1, quiet=True).model
    >>> ((answer, *_),) = Predictor(model).predict(["Oslo", MASK], allow=["Norway"])       # one list for each mask
    >>> answer.name, answer.certified
    ('Norway', True)
    """

    def __init__(self, model: Model, *, precision: str = "fp32", prior: bool = True) -> None:
        self.model, self.prior = model, prior
        self.head = Head(model.network, precision)
        self._bloom = model.target_bloom

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the model; what is computed from it is made again."""
        return partial(type(self), precision=self.head.precision, prior=self.prior), (self.model,)

    def predict(self, context: Sequence[str | Special] | str, k: int = 10, **options: Any) -> list[list[Prediction]]:
        """The k best names for each [MASK] of the context, in order; without a [MASK], for one more element.

        The context is a list of names, or of a model of text, a text with [MASK]. There a name of two words is answered
        as in the paper: miles_davis. Options are those of query.
        """
        query = self.query(context, k, **options)
        if query.unread:
            warnings.warn(f"{query.unread[0]!r} cannot be read with these word pieces; left out", stacklevel=2)
        return [found.predictions for found in self.answer([query])[0]]

    def query(
        self,
        context: Sequence[str | Special] | str,
        k: int = 10,
        *,
        beam: int | None = None,
        max_rounds: int | None = None,
        combine: str | Sequence[float] | Combine = "sum",
        exclude: Iterable[str] = (),
        exclude_context: bool = False,
        allow: Iterable[str] | None = None,
        min_score: float | None = None,
        explain: bool = False,
    ) -> Query:
        """A query of names in ids; InputError if one is unknown, or there are too many.

        exclude are names that may not be answered, with exclude_context those of the context, too; allow the only ones
        that may; none that scores less than min_score is. The prior is a term of the sum: with another combine it is
        left out. explain tells why.
        """
        check_whole(k=k)
        ids, unread = self._text_ids(context) if isinstance(context, str) else (self._ids(context), [])
        if Special.MASK not in ids:
            ids.append(Special.MASK)
        if self.model.vocab.is_text:
            ids = [Special.CLS, *ids, Special.SEP]
        seq_len = self.model.config.seq_len
        if len(ids) > seq_len:
            raise InputError(f"{len(ids)} elements given; this model reads up to {seq_len}: shorten the context")
        out = self._target_ids("exclude", exclude)
        if exclude_context:
            if isinstance(context, str):
                raise InputError("exclude_context goes with names; of a text, exclude leaves out what you name")
            found = (self.model.target_vocab.find(self.model.vocab.name(id_)) for id_ in ids if id_ >= 0)
            out += tuple(id_ for id_ in found if id_ is not None)
        only = None if allow is None else self._target_ids("allow", allow)
        if only == ():
            raise InputError("allow holds no name; give at least one, or leave it out")
        if min_score is not None and min_score != min_score:
            raise InputError(f"min_score={min_score} given; a number is allowed")
        if explain and not is_sum(combine):
            raise InputError(f"combine={combine!r} cannot be explained; only the sum, in which parts add up, can")
        query = Query(
            tuple(ids),
            min(k, len(self.model.target_vocab)),  # more are not there
            beam,
            max_rounds,
            combine,
            out,
            only,
            min_score,
            explain,
            tuple(unread),
        )
        if query.rows > (most := max(self.chunk, FEWEST)):
            to_explain = " to explain" if explain else ""
            raise InputError(
                f"{len(query.places)} masks and {len(query.elements)} elements{to_explain} given; that takes "
                f"{query.rows:,} distributions, up to {most:,} are allowed: ask for fewer masks at a time"
            )
        if explain and query.k * len(query.places) > MOST_REASONS:
            raise InputError(
                f"k={k} for {len(query.places)} masks given; up to {MOST_REASONS} answers in all are explained"
            )
        return query

    def answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        """The answers to many queries, for each a list with one for each mask; those that fit share one product."""
        answers: list[list[Found]] = []
        for part in parts(queries, self.chunk):
            answers += self._answer(part)
        return answers

    def _answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        contexts = [context for query in queries for context in query.contexts]
        places = [query.places for query in queries for _ in query.contexts]
        most = max(map(len, places))
        asked = torch.tensor([row + row[:1] * (most - len(row)) for row in places])
        wanted = (torch.arange(most) < torch.tensor([[len(row)] for row in places])).view(-1)
        y = self.model.encode_only(padded(contexts, Special.PAD), asked)
        log_probs = self.head.log_probs(y if bool(wanted.all()) else y[wanted.to(y.device)])
        found = self._search_queries(queries, log_probs)
        shares = log_probs.split([query.rows for query in queries])
        return [
            [
                replace(mask, explanation=explain(self, query, place, ids, share.unflatten(0, (-1, len(query.places)))))
                for place, (mask, ids) in enumerate(masks)
            ]
            if query.explain
            else [mask for mask, _ in masks]
            for query, share, masks in zip(queries, shares, found, strict=True)
        ]

    def _search_queries(self, queries: Sequence[Query], log_probs: Tensor) -> list[list[tuple[Found, Tensor]]]:
        """What is found for each mask of each query, with its ids; queries with like options are searched together."""
        starts = [0, *accumulate(query.rows for query in queries)]
        together: dict[Any, list[int]] = {}
        for number, query in enumerate(queries):
            options = query.searched_with
            together.setdefault(number if options is None else options, []).append(number)
        answers: dict[int, list[tuple[Found, Tensor]]] = {}
        for numbers in together.values():
            group = [queries[number] for number in numbers]
            rows = [starts[i] + row for i in numbers for row in range(len(queries[i].places))]
            asked = log_probs if len(rows) == len(log_probs) else log_probs[rows]
            masks = self._found(self.search(asked, **self.options(group)))
            for number in numbers:
                size = len(queries[number].places)
                answers[number], masks = masks[:size], masks[size:]
        return [answers[number] for number in range(len(queries))]

    def options(self, group: Sequence[Query]) -> dict[str, Any]:
        """Options of a search for all masks of queries that are searched together."""
        first, each = group[0], torch.tensor([len(query.places) for query in group])
        exclude = [query.exclude for query in group]
        floors = [-torch.inf if query.min_score is None else query.min_score for query in group]
        return {
            "k": first.k,
            "beam": first.beam,
            "max_rounds": first.max_rounds,
            "combine": first.combine,
            "exclude": padded(exclude, -1).repeat_interleave(each, dim=0) if any(exclude) else None,
            "allow": None if first.allow is None else torch.tensor(first.allow, dtype=torch.long),
            "min_score": torch.tensor(floors).repeat_interleave(each)
            if floors.count(-torch.inf) < len(floors)
            else None,
            "temperature": self.temperature,
        }

    def log_probs(self, ids: Tensor, places: Tensor) -> Tensor:
        """Token log-probabilities at each place, (batch · p, m, buckets), by the head of this precision."""
        return self.head.log_probs(self.model.encode_only(ids, places))

    @property
    def temperature(self) -> float:
        return float(self.model.config.num_hashes) if self.model.prior is None else self.model.prior.temperature

    @property
    def chunk(self) -> int:
        """How many queries to rank together: one matmul reads the output embedding once for all of them."""
        config = self.model.config
        return max(1, min(CHUNK, CHUNK_BYTES // (4 * config.num_hashes * config.output_buckets)))

    def search(self, log_probs: Tensor, k: int | Tensor, **options: Any) -> TopK:
        """The k best ids of each query, from its token log-probabilities (queries, m, buckets); options of top_k."""
        if self._bloom.table.device != log_probs.device:
            self._bloom = self._bloom.to(log_probs.device)
            self.bonus = None if self.bonus is None else self.bonus.to(log_probs.device)
        if is_sum(options.get("combine", "sum")):
            options.setdefault("bonus", self.bonus)
        return top_k(log_probs, self._bloom, k, **options)

    @cached_property
    def bonus(self) -> Bonus | None:
        """What the prior adds to the score of each id."""
        prior = self.model.prior
        return prior.bonus(self.model.target_bloom) if prior is not None and self.prior else None

    def _text_ids(self, text: str) -> tuple[list[int], list[str]]:
        """The ids of a text, and what of it cannot be read."""
        if not self.model.vocab.is_text:
            raise InputError(f"the text {text!r:.80} given as context; give a list of names")
        parts = MASKS.split(text)
        if len(parts) == 1:
            raise InputError(f"{text[:80]!r} has no {MASK_TEXT}; put one where something is to be filled in")
        seq_len = self.model.config.seq_len
        if len(parts) > seq_len or len(text) > LONGEST_ENTRY * seq_len:
            raise InputError(
                f"a text of {len(text):,} characters with {len(parts) - 1:,} masks given; this model reads up to "
                f"{seq_len} elements: shorten it"
            )
        with READING:
            found = [self.model.vocab.segmenter.segment(part) for part in parts]
        pairs = zip(parts, found, strict=True)
        unread = [part[slice(*span)] for part, segments in pairs for span in segments.unknown]
        ids = [id_ for segments in found for id_ in (*segments.ids.tolist(), int(Special.MASK))]
        return ids[:-1], unread

    def _ids(self, context: Sequence[str | Special]) -> list[int]:
        vocab = self.model.vocab
        return [
            int(Special.MASK)
            if name is Special.MASK or (name == MASK_TEXT and name not in vocab)
            else vocab.id(str(name))
            for name in context
        ]

    def _target_ids(self, option: str, names: Iterable[str]) -> tuple[int, ...]:
        if isinstance(names, str):
            raise InputError(f"the text {names!r} given as {option}; give a list of names")
        return tuple(self.model.target_vocab.id(name) for name in names)

    def _found(self, found: TopK) -> list[tuple[Found, Tensor]]:
        """The answer of each row with names, and its ids."""
        assert found.mass is not None
        assert found.unscored is not None
        scaled = found.scores / self.temperature
        shares = (scaled - found.mass[:, None]).exp().tolist()
        lowest = (scaled - torch.logaddexp(found.mass, found.unscored)[:, None]).exp().tolist()
        ids, scores, there = found.ids.tolist(), found.scores.tolist(), (found.ids >= 0).sum(dim=1).tolist()
        proofs = zip(found.certified.tolist(), found.rounds.tolist(), found.scored.tolist(), strict=True)
        answers = []
        for row, (certified, rounds, scored) in enumerate(proofs):
            columns = zip(*(column[row][: there[row]] for column in (ids, scores, shares, lowest)), strict=True)
            predictions = [
                Prediction(self.name(id_), score, certified, share, low) for id_, score, share, low in columns
            ]
            answers.append((Found(predictions, certified, rounds, scored), found.ids[row, : there[row]]))
        return answers

    def name(self, id_: int) -> str:
        """The name of an id that is predicted; of text, two words with an underscore as in the paper."""
        name = self.model.target_vocab.name(id_)
        return name.replace(" ", "_") if self.model.target_vocab.is_text else name
