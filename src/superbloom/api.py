"""The Python API: Superbloom(...).fit(corpus).predict(names), saved to and loaded from a folder."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self, SupportsIndex

import pyarrow.compute as pc

from superbloom.answers import Prediction, Similar
from superbloom.config import (
    COUNT_OPTIONS,
    SIZES,
    EvaluateOptions,
    ExtendOptions,
    ModelConfig,
    QueryOptions,
    RecommendOptions,
    SimilarOptions,
    TrainConfig,
    check_known,
    document,
    preset_options,
    train_config,
    with_proportions,
)
from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.evaluate import evaluate
from superbloom.hashing import check_sizes, max_alpha
from superbloom.memory import check_half_life
from superbloom.model import Model
from superbloom.model.extend import extend
from superbloom.predict import Predictor, similar
from superbloom.runtime import is_main_process
from superbloom.special import Special
from superbloom.storage import MANIFESTS, read_consistently, sha256
from superbloom.store import Stored, load, save
from superbloom.training.checkpoints import sizes_of_run
from superbloom.training.choice import Sizes, choose_for
from superbloom.training.distributed import check_coherent_threads
from superbloom.training.finish import finished, remembered
from superbloom.training.limits import check_memory
from superbloom.training.run_folder import RunFolder


class Superbloom:
    """A model to fit and ask. Options are those of ModelConfig. A preset sets those of the paper, or a recipe's.

    >>> rows = [["Copenhagen", "Denmark", "Oslo"], ["Oslo", "Norway", "Denmark"]] * 8
    >>> model = Superbloom(alpha=2, dim=16, ffn_dim=16).fit(Corpus.from_sequences(rows), steps=3, quiet=True)
    >>> len(model.predict(["Copenhagen", "Denmark"], k=2))
    2
    """

    def __init__(self, preset: str | None = None, **options: Any) -> None:
        shape, self.train_options = ({}, {}) if preset is None else preset_options(preset)
        check_known(options, [field.name for field in fields(ModelConfig) if field.name not in SIZES])
        self.options = shape | options
        ModelConfig(num_ids=1, **with_proportions(self.options))  # refuses values that no corpus allows
        self.training: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self._model: Model | None = None
        self._predictor: Predictor | None = None
        self._corpus: Corpus | None = None
        self._origin: Origin | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle a reference to the folder that the model was loaded from, if that folder still holds the model.

        Otherwise pickle the whole model, as after fit and extend. Changes that you make to weights yourself are not
        noticed: copy the model first.
        """
        if self._origin is None or not self._origin.is_there():
            return super().__reduce_ex__(protocol)
        held = self._origin.metrics
        measured = {name: figures for name, figures in self.metrics.items() if figures is not held.get(name)}
        own = {name: value for name, value in vars(self).items() if name not in FROM_FOLDER}  # of a subclass
        return _reopened, (type(self), self._origin._replace(metrics={}), measured), own

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_predictor": None}

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__ |= self.__getstate__()
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = copy.copy(self)
        twin.__dict__ |= copy.deepcopy(self.__getstate__() | {"_origin": None}, memo)
        return twin

    def __repr__(self) -> str:
        if self._model is None:
            return f"Superbloom({', '.join(f'{name}={value!r}' for name, value in self.options.items())}), not fitted"
        config = self._model.config
        return f"Superbloom({config.num_ids:,} names, alpha={config.alpha}, {self.training.get('steps')} steps)"

    def config_for(self, corpus: Corpus) -> ModelConfig:
        """The model that these options describe for a corpus, with the defaults of options that are not given.

        alpha, unless given, is lowered for a small corpus. fit chooses sizes that are not given (sizes_for).
        """
        options = self._options_for(corpus)
        targets = corpus.target_vocab
        config = ModelConfig(num_ids=corpus.num_ids, **with_proportions(options))
        hashes = config.distinguishing_hashes
        if "alpha" not in options:
            sizes = {corpus.num_ids, len(targets or corpus.vocab)}
            config = replace(config, alpha=min(config.alpha, *(max_alpha(n, hashes) for n in sizes)))
        check_sizes(corpus.num_ids, hashes, config.alpha)
        if targets is not None:
            check_sizes(len(targets), hashes, config.target_alpha or config.alpha)
        return config

    def sizes_for(self, corpus: Corpus, training: TrainConfig, run: Path | None = None) -> Sizes:
        """The sizes of the model for a corpus and a training: those given, and otherwise those that suit best.

        run: a run to resume, whose model has its sizes already.
        """
        begun = {} if run is None else sizes_of_run(run)
        return choose_for(corpus, begun | self._options_for(corpus), training)

    def _options_for(self, corpus: Corpus) -> dict[str, Any]:
        """The options of the model that were given, and those that follow from the corpus."""
        if not isinstance(corpus, Corpus):
            raise InputError(f"a {type(corpus).__name__} given; give a Corpus, e.g. Corpus.from_sequences(rows)")
        targets = corpus.target_vocab
        return self.options if targets is None else {"tied": False, **self.options, "num_target_ids": len(targets)}

    def fit(
        self,
        corpus: Corpus,
        *,
        from_model: Superbloom | str | Path | None = None,
        run: str | Path | RunFolder | None = None,
        resume: bool = False,
        quiet: bool = False,
        **options: Any,
    ) -> Superbloom:
        """Train on a corpus. Options are those of TrainConfig; training takes 5 minutes without steps or minutes.

        from_model: a model or its folder to start from. Names of the corpus that it does not know are added (see
        extend).
        run: a folder for checkpoints and log. With it, SIGTERM saves a checkpoint and ends the process.
        resume: continue from the newest checkpoint in run, if there is one.
        devices=2 trains in two processes. Both run this script, and only the main process saves.
        """
        import torch

        from superbloom.training.fit import fit

        folder = run if run is None or isinstance(run, RunFolder) else RunFolder(Path(run))
        config = train_config(**self.train_options | options)
        check_half_life(config.half_life, corpus)
        if folder is not None and not resume:
            folder.check_new()  # now, because creating a model may take long; fit checks again once it has the lock
        if from_model is not None:
            model = self._continued(from_model, corpus)
            corpus = corpus.under(model.vocab)
            check_memory(model.config, config)
        else:
            sizes = self.sizes_for(corpus, config, folder.path if folder is not None and resume else None)
            shape = sizes.config
            check_memory(shape, config)
            if "alpha" not in self.options and not quiet and is_main_process():
                sys.stderr.write(f"{sizes.reason}\n")
            if shape.coherent:
                check_coherent_threads(shape.coherent, config.devices)
            torch.manual_seed(config.seed)
            remedy = "train with --coherent 0" if shape.coherent else "lower --dim or raise --alpha"
            with room_for("the weights and hash tables", remedy):
                model = Model.create(shape, corpus.vocab, corpus.target_vocab, corpus=corpus)
        initialised = from_model is not None
        outcome = fit(model, corpus, config, run=folder, resume=resume, quiet=quiet, initialised=initialised)
        # With several processes, only the main one has the model to use and save.
        memory = outcome.pop("memory")
        self._use(finished(model, corpus, config, memory) if is_main_process() else model)
        self._corpus = corpus
        self.metrics = {"history": outcome.pop("history")}
        options = {name: value for name, value in asdict(config).items() if name not in COUNT_OPTIONS}
        self.training = {"config": options, "corpus": corpus.fingerprint(), **outcome}
        return self

    def _continued(self, from_model: Superbloom | str | Path, corpus: Corpus) -> Model:
        """A copy of a model, extended by the names of a corpus that it does not know."""
        base = from_model if isinstance(from_model, Superbloom) else Superbloom.from_pretrained(from_model)
        if self.options and self.options != base.options:
            raise InputError("from_model decides sizes and choices of the model; give Superbloom() no other options")
        self.options, model = base.options, base._with_names_of(corpus)
        return replace(model, network=copy.deepcopy(model.network))

    def _with_names_of(self, corpus: Corpus, **options: Any) -> Model:
        """The model, extended by the names of a corpus that it does not know."""
        theirs, ours = (vocab.table["name"].combine_chunks() for vocab in (corpus.vocab, self.model.vocab))
        new = theirs.filter(pc.invert(pc.is_in(theirs, value_set=ours))).to_pylist()
        return extend(self.model, new, **options) if new else self.model

    def extend(
        self,
        names: Iterable[str],
        *,
        like: Mapping[str, Sequence[str]] | None = None,
        reserve: float = ExtendOptions.reserve,
    ) -> Superbloom:
        """Add names that were not there in training; old digests and answers among old names stay as they are.

        like: {new name: [known names]} puts a new name into buckets of the known ones.
        reserve: how much fuller a bucket may become, as a share of alpha.
        """
        self._use(extend(self.model, names, like=like, reserve=reserve))
        return self

    def remember(
        self,
        corpus: Corpus,
        *,
        replace: bool = ExtendOptions.replace,
        like: Mapping[str, Sequence[str]] | None = None,
        reserve: float = ExtendOptions.reserve,
        engine: str = TrainConfig.count_engine,
        master: str | None = TrainConfig.count_master,
        megabytes: int = TrainConfig.count_mb,
    ) -> Superbloom:
        """Add pairs and rows of a newer corpus to the memory, without training; with replace, instead of the old ones.

        Rows that are remembered are not counted twice: of a row that has grown, what is new is added. A corpus without
        new rows is refused. Names that the model does not know are added first; like and reserve are those of extend.
        Weights stay as they were fitted; a model without a memory gets one, weighed by the validation rows of this
        corpus. engine, master and megabytes are count_engine, count_master and count_mb of TrainConfig: where pairs are
        counted.
        """
        config = train_config(count_engine=engine, count_master=master, count_mb=megabytes)
        fingerprint = corpus.fingerprint()
        model = self._with_names_of(corpus, like=like, reserve=reserve)
        corpus = corpus.under(model.vocab)
        self._use(remembered(model, corpus, config, fingerprint=fingerprint, replaces=replace))
        self._corpus = corpus
        return self

    @document(EvaluateOptions)
    def evaluate(self, corpus: Corpus, **options: Any) -> dict[str, Any]:
        """recall@k on held-out rows beside yardsticks. The figures are saved with the model.

        Hidden names that the model does not know count as missed; figures["unknown"] says how many there are.
        """
        figures = evaluate(self.predictor, corpus, **options)
        self.metrics[figures["split"]] = figures
        return figures

    @document(QueryOptions)
    def predict(
        self, context: Sequence[str | Special] | str, k: int = QueryOptions.k, **options: Any
    ) -> list[Prediction] | list[list[Prediction]]:
        """The k best names for the [MASK] of the context; if it has several, or is a text, one such list per mask."""
        found = self.predictor.predict(context, k, **options)
        return found[0] if len(found) == 1 and not isinstance(context, str) else found

    @document(RecommendOptions)
    def recommend(
        self,
        users: Iterable[Any] | None = None,
        k: int = RecommendOptions.k,
        filter_seen: bool | None = RecommendOptions.filter_seen,
        items_to_recommend: Iterable[str] | Mapping[Any, Iterable[str]] | None = None,
        *,
        corpus: Corpus | None = None,
        strict: bool = False,
        **rules: Any,
    ) -> Any:
        """The k best next items of some users, or of all: a table of user, item, score, rank, certified, source.

        Histories come from the corpus that the model was fitted on, or from another. Unknown users and items are left
        out with a warning, or refused if strict. A user without a known item gets what rows begin with, and the source
        is "start", not "history". filter_seen leaves out the items that a user has had. If it is not given, they are
        left out if rows of the corpus that the model learned from rarely repeat an item.

        Rules: items_to_recommend (recommend only these) and exclude (never these) are lists for all users, or
        {user: list}. categories is {item: category}, for max_per_category. The answer is the best list under them.
        """
        from superbloom.predict.recommend import Histories, frame, recommend

        corpus = corpus or self._corpus
        if corpus is None:
            raise InputError("a loaded model knows no users; give corpus=, or use recommend_for with lists of names")
        histories = Histories.of_users(corpus, self.model.vocab, users, strict)
        rules |= {"filter_seen": filter_seen, "items_to_recommend": items_to_recommend}
        return frame(recommend(self.predictor, histories, k, **rules), corpus.backend)

    def recommend_for(self, lists: Any, k: int = RecommendOptions.k, *, strict: bool = False, **rules: Any) -> Any:
        """The same for lists of names. The column `user` is the number of the list, or its key in a mapping."""
        from superbloom.predict.recommend import Histories, frame, recommend

        histories = Histories.of_names(lists, self.model.vocab, strict)
        return frame(recommend(self.predictor, histories, k, **rules), self._backend)

    def similar(self, names: Sequence[str], k: int = SimilarOptions.k) -> Similar:
        """The k names that are most similar to these names together: their neighbours in training rows.

        Names without neighbours, and models that remember no pairs, are answered by the network; the note says so.
        """
        return similar(self.predictor, [names], k)[0]

    def similar_items(self, items: Iterable[Any], k: int = SimilarOptions.k) -> Any:
        """The k items that are most similar to each item: a table of similar_to, item, score, rank, source.

        source "pairs": neighbours in training rows, and the score is the cosine of counted pairs. source "network": the
        item has no pairs, so these are the answers to a history of it alone, and the score is a log-probability.
        """
        from superbloom.predict.recommend import frame, item_name

        if isinstance(items, str):
            raise InputError(f"the text {items!r} given as items; give a list of them")
        columns: dict[str, list[Any]] = {name: [] for name in ("similar_to", "item", "score", "rank", "source")}
        for found in similar(self.predictor, [[str(item_name(item))] for item in items], k):
            for rank, neighbour in enumerate(found.neighbours, 1):
                row = (found.names[0], neighbour.name, neighbour.score, rank, found.source)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
        return frame(columns, self._backend)

    @property
    def _backend(self) -> str | None:
        return None if self._corpus is None else self._corpus.backend

    @property
    def model(self) -> Model:
        if self._model is None:
            raise InputError(
                "this Superbloom has not learned anything yet; call fit(corpus) or from_pretrained(folder)"
            )
        return self._model

    @property
    def predictor(self) -> Predictor:
        if self._predictor is None:
            self._predictor = Predictor(self.model)
        return self._predictor

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = True) -> None:
        """Write the model folder, whole or not at all; share it with any tool that copies folders.

        A model that is there is replaced, as Hugging Face does; overwrite=False refuses that. Anything else is always
        refused.
        """
        if is_main_process():
            save(self.model, folder, training=self.training, metrics=self.metrics, overwrite=overwrite)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, verify: bool = True, copy: bool = False) -> Superbloom:
        """A model from its folder, or from the Hugging Face hub by `owner/name`; every file is checked first.

        Files above 256 MiB are memory-mapped: do not write into them while you use the model. copy=True reads them
        into memory.
        """
        path = Path(folder)
        if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
            path = _download(str(folder))
        return cls._of_stored(*_opened(path, verify, copy))

    @classmethod
    def _of_stored(cls, stored: Stored, origin: Origin) -> Superbloom:
        config = asdict(stored.model.config)
        superbloom = cls(**{name: value for name, value in config.items() if name not in SIZES})
        superbloom._use(stored.model)
        superbloom.training, superbloom.metrics = dict(stored.training), dict(stored.metrics)
        superbloom._origin = origin
        return superbloom

    def _use(self, model: Model) -> None:
        self._model, self._predictor, self._origin = model, None, None


class Origin(NamedTuple):
    """The folder that a model was loaded from, and how."""

    folder: Path
    sha256: str  # checksum of config.json, which lists the checksums of the other files
    verify: bool
    copy: bool
    metrics: dict[str, Any]

    def is_there(self) -> bool:
        """Whether the folder still holds that model."""
        try:
            return sha256(self.folder / MANIFESTS["model"]) == self.sha256
        except OSError:
            return False


# Attributes that a reference to a folder restores, or that are made again.
FROM_FOLDER = {"_model", "_predictor", "_origin", "metrics", "training", "options", "train_options"}


def _opened(path: Path, verify: bool, copy: bool) -> tuple[Stored, Origin]:
    stored, checksum = read_consistently(
        path, lambda: (load(path, verify=verify, copy=copy), sha256(path / MANIFESTS["model"]))
    )
    return stored, Origin(path.resolve(), checksum, verify, copy, dict(stored.metrics))


def _reopened(cls: type[Superbloom], origin: Origin, measured: dict[str, Any]) -> Superbloom:
    """The model that a pickle refers to; InputError if its folder is gone or holds another model."""
    stored, origin = _opened_once(*origin[:4])
    superbloom = cls._of_stored(stored, origin)
    superbloom.metrics |= measured
    return superbloom


@lru_cache(maxsize=1)  # a worker of a Pool, or of Spark, unpickles one model for every task
def _opened_once(folder: Path, checksum: str, verify: bool, copy: bool) -> tuple[Stored, Origin]:
    try:
        stored, origin = _opened(folder, verify, copy)
    except InputError as error:
        raise InputError(f"the pickle of a model refers to its folder: {error}; put it back, and try again") from None
    if origin.sha256 != checksum:
        raise InputError(f"{folder} holds another model than when it was pickled; load and pickle it again")
    return stored, origin


def _download(repo: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"there is no folder {repo}, and the hub gave no model of that name: {reason}") from None
