"""Names in, names out: the one way to ask a model, used by Python, the command line, the server and the evaluation.

names with [MASK]  →  ids (reader.py)  →  log-probabilities, certified top-k (searcher.py)  →  names, one list per mask
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from superbloom.answers import Found, Prediction, unread_line
from superbloom.config import QueryOptions, document, make
from superbloom.predict.beliefs import Beliefs
from superbloom.predict.explain import explain
from superbloom.predict.query import Query, padded, parts
from superbloom.predict.reader import read_query
from superbloom.predict.searcher import Searcher
from superbloom.search import TopK
from superbloom.special import Special


class Predictor(Searcher):
    """Answers queries with a model.

    The text "[MASK]" means the mask unless the catalogue has that very name; MASK always means the mask.

    >>> from superbloom import MASK, Corpus, Superbloom
    >>> corpus = Corpus.from_sequences([["Copenhagen", "Denmark", "Oslo"], ["Oslo", "Norway", "Denmark"]] * 8)
    >>> model = Superbloom(alpha=2, dim=16, ffn_dim=16).fit(corpus, steps=1, quiet=True).model
    >>> ((answer, *_),) = Predictor(model).predict(["Oslo", MASK], allow=["Norway"])       # one list for each mask
    >>> answer.name, answer.certified
    ('Norway', True)
    """

    def predict(
        self, context: Sequence[str | Special] | str, k: int = QueryOptions.k, **options: Any
    ) -> list[list[Prediction]]:
        """The k best names for each [MASK] of the context, in order; without a [MASK], for one more element.

        The context is a list of names or, for a model of text, a text with [MASK]. Options are those of query.
        """
        return [found.predictions for found in self.ask(context, k, **options)]

    def ask(self, context: Sequence[str | Special] | str, k: int = QueryOptions.k, **options: Any) -> list[Found]:
        """The whole answer for each [MASK] of the context. explain=True adds the reasons and the certificate."""
        query = self.query(context, k, **options)
        if query.unread:
            warnings.warn(unread_line(query.unread), stacklevel=3)
        return self.answer([query])[0]

    @document(QueryOptions)
    def query(self, context: Sequence[str | Special] | str, k: int = QueryOptions.k, **options: Any) -> Query:
        """A query of names in ids; InputError if a name is unknown, or if there are too many."""
        return read_query(self.model, context, make(QueryOptions, {"k": k, **options}), self.chunk)

    def answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        """The answers to many queries: for each query a list with one answer per mask.

        Queries that fit into memory together share one matrix product.
        """
        return [answer for part in parts(queries, self.chunk) for answer in self._answer(part)]

    def _answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        beliefs = self._beliefs_of(queries)
        found = self._search_queries(queries, beliefs)
        starts = [0, *accumulate(query.rows for query in queries)]
        return [
            [
                replace(
                    mask, explanation=explain(self, query, place, ids, beliefs.rows(slice(start, start + query.rows)))
                )
                for place, (mask, ids) in enumerate(masks)
            ]
            if query.options.explain
            else [mask for mask, _ in masks]
            for query, start, masks in zip(queries, starts, found, strict=False)
        ]

    def _beliefs_of(self, queries: Sequence[Query]) -> Beliefs:
        """What the model believes about every mask of every context of the queries."""
        contexts = [context for query in queries for context in query.contexts]
        places = [query.places for query in queries for _ in query.contexts]
        most = max(map(len, places))
        asked = torch.tensor([row + row[:1] * (most - len(row)) for row in places])
        wanted = (torch.arange(most) < torch.tensor([[len(row)] for row in places])).view(-1)
        return self._believed(padded(contexts, Special.PAD), asked, None if bool(wanted.all()) else wanted)

    def _search_queries(self, queries: Sequence[Query], beliefs: Beliefs) -> list[list[tuple[Found, Tensor]]]:
        """The answer for each mask of each query, with its ids; queries of one group are searched together."""
        starts = [0, *accumulate(query.rows for query in queries)]
        together: dict[Any, list[int]] = {}
        for number, query in enumerate(queries):
            group = query.group
            together.setdefault(number if group is None else group, []).append(number)
        answers: dict[int, list[tuple[Found, Tensor]]] = {}
        for numbers in together.values():
            rows = [starts[i] + row for i in numbers for row in range(len(queries[i].places))]
            asked = beliefs if len(rows) == beliefs.size else beliefs.rows(rows)
            options = self.search_options([queries[number] for number in numbers])
            found = self.search(asked, **options)
            is_log = self.is_posterior(options["combine"])
            masks = self._named(found, found.scores if is_log else self.log_probability(asked, found.ids))
            for number in numbers:
                size = len(queries[number].places)
                answers[number], masks = masks[:size], masks[size:]
        return [answers[number] for number in range(len(queries))]

    def _named(self, found: TopK, log_probability: Tensor) -> list[tuple[Found, Tensor]]:
        """The answer of each row with names and probabilities, and its ids."""
        probabilities = log_probability.exp().tolist()
        ids, scores, sizes = found.ids.tolist(), found.scores.tolist(), (found.ids >= 0).sum(dim=1).tolist()
        proofs = zip(found.certified.tolist(), found.rounds.tolist(), found.scored.tolist(), strict=True)
        answers = []
        for row, (certified, rounds, scored) in enumerate(proofs):
            columns = zip(*(column[row][: sizes[row]] for column in (ids, scores, probabilities)), strict=True)
            predictions = [
                Prediction(self.name(id_), score, certified, probability) for id_, score, probability in columns
            ]
            answers.append((Found(predictions, certified, rounds, scored), found.ids[row, : sizes[row]]))
        return answers
