"""What happens between the steps: validation, log, checkpoints, the best weights, progress, and the end of training."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.evaluate import KS, HeldOut, memory_probabilities, network_probabilities, ranks
from superbloom.memory import Memory
from superbloom.model import Model, Prior
from superbloom.predict import Predictor
from superbloom.runtime import is_main_process
from superbloom.training.distributed import agree
from superbloom.training.finish import repeats_of
from superbloom.training.logs import Log
from superbloom.training.progress import TrainingProgress
from superbloom.training.stop import Stop

LOG_EVERY_STEPS = 25
PARTS_OF_TIME = 10_000  # processes agree on the time that is over in whole numbers


class TrainingCallback(L.Callback):
    """Runs after every step. All processes take the same decisions; the main process validates, logs and prints.

    seconds: time spent before the first step. Attributes that `fit` reads: history (one entry per validation), taken
    (the step of the best weights, 0 if none are kept), seconds, and stopped (the signal that ended training, or 0).
    """

    # subtle: checkpoints store the callback's state under the name that this class had at first. Another key would
    # make runs that began with an earlier release impossible to resume.
    state_key = "Watch"

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        config: TrainConfig,
        memory: Memory | None,
        run: Path | None,
        stop: Stop,
        progress: TrainingProgress,
        seconds: float = 0.0,
    ) -> None:
        prior, repeats = Prior.of_corpus(corpus), repeats_of(model, corpus)
        self.predictor = Predictor(replace(model, prior=prior, memory=memory, repeats=repeats))
        self.config, self.run, self.stop, self.progress = config, run, stop, progress
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}  # weights with the highest validation recall, the last of equal ones
        self.taken = 0  # the step of these weights
        self.improved = 0  # the step of the first of equal ones
        self.earlier = self.seconds = self.validated = seconds
        self.stopped = 0
        self.run_log: Log | None = None  # not `log`: Lightning sets that attribute on every callback
        self.valid_rows = len(corpus.rows("valid"))  # different ones; hidden elements may be more
        split = "valid" if self.valid_rows else None
        self.held_out = split and HeldOut.of(corpus, split, model.config.seq_len, draws=config.valid_rows)

    @cached_property
    def remembered(self) -> np.ndarray:
        """The probability that each part of the memory gives to each hidden element; training does not change it."""
        memory, bloom = self.predictor.model.memory, self.predictor.model.target_bloom
        assert memory is not None
        assert isinstance(self.held_out, HeldOut)
        return memory_probabilities(memory, self.held_out, bloom.num_ids, self.predictor.chunk)

    def _recall(self) -> dict[str, float]:
        """Validation recall of the answers that the model gives now: the memory is weighed again."""
        assert isinstance(self.held_out, HeldOut)
        memory = self.predictor.model.memory
        if memory is not None:
            memory = memory.weighed(
                network_probabilities(self.predictor, self.held_out), self.remembered, self.valid_rows
            )
            self.predictor.model = replace(self.predictor.model, memory=memory)
        filter_seen = self.predictor.model.leaves_out_context
        rank = ranks(self.predictor, self.held_out, with_probabilities=False, filter_seen=filter_seen).rank
        return {f"recall_at_{k}": float((rank < k).mean()) for k in KS}

    def report_memory(self, seconds: float) -> None:
        """Print what the memory knows before the network has learned anything. seconds: the time that counting took."""
        memory = self.predictor.model.memory
        if memory is not None and self.held_out:
            what = "pairs and rows" if memory.kind == "both" else memory.kind
            found = f"validation recall@10 {self._recall()['recall_at_10']:.3f}"
            self.progress.print_line(f"counted {what} in {seconds:.1f} s: {found}; training …")

    def on_train_start(self, trainer: L.Trainer, training: Any) -> None:
        self.stop.listen()
        step = trainer.global_step
        most, least = agree(trainer, step, -step)
        if most != -least:
            raise InputError(f"processes resume from steps {-least} to {most}; {self.run} must be a folder all share")
        self.started = time.monotonic()
        self.validated = self.seconds
        self._set_done(trainer, training)
        if self.run is not None and is_main_process():
            self.run_log = Log(self.run, step)

    def on_train_batch_end(self, trainer: L.Trainer, training: Any, outputs: Any, *_: Any) -> None:
        step, limit = trainer.global_step, self.config.minutes
        self.seconds = self.earlier + time.monotonic() - self.started
        # A run limited by minutes also validates after each tenth of its time, because its steps may be few.
        tenth_passed = limit is not None and self.seconds - self.validated >= 6 * limit
        all_passed = limit is not None and self.seconds >= 60 * limit
        self.stopped, tenth, over = agree(trainer, self.stop.signal, tenth_passed, all_passed)
        last = over or step == self.config.steps
        if step % self.config.valid_every == 0 or tenth or last:
            self._validate(trainer, training)
            if not last and self._is_hopeless(trainer):
                last = over = True
        loss = outputs["loss"].detach()
        if step % LOG_EVERY_STEPS == 0:
            loss = trainer.strategy.reduce(loss, reduce_op="mean")
            self._log(step, loss=loss.item(), learning_rate=training.rate, gradient_norm=training.norm)
        if self.stopped or last or step % self.config.save_every == 0:
            self._save(trainer)
        if self.stopped or over:
            trainer.should_stop = True
        self._set_done(trainer, training)
        valid = self.history[-1]["recall_at_10"] if self.history else None
        self.progress.update(step, self.seconds, loss.item(), valid)

    def _set_done(self, trainer: L.Trainer, training: Any) -> None:
        """Set the share of the training that is done, for the cooldown. All processes set the same."""
        steps, minutes = self.config.steps, self.config.minutes
        if not self.config.cooldown:
            return
        if steps is not None:
            training.done = trainer.global_step / steps
        elif minutes is not None:
            training.done = agree(trainer, int(self.seconds / (60 * minutes) * PARTS_OF_TIME))[0] / PARTS_OF_TIME

    def close(self) -> None:
        if self.run_log is not None:
            self.run_log.close()

    def _validate(self, trainer: L.Trainer, training: Any) -> None:
        self.validated = self.seconds
        if self.held_out:
            step, better, best = trainer.global_step, 0, 0
            with training.optimizer.averaged():
                training.gather_sharded_weights()
                if is_main_process():
                    recall = self._recall()
                    highest = max((earlier["recall_at_10"] for earlier in self.history), default=-1.0)
                    better, best = recall["recall_at_10"] > highest, recall["recall_at_10"] >= highest
                    self.history.append({"step": step, "seconds": round(self.seconds, 1), **recall})
                    self._log(step, valid_recall_at_10=recall["recall_at_10"])
                better, best = agree(trainer, better, best)
                if better:
                    self.improved = step
                if best and self.config.patience:
                    self.taken = step
                    if is_main_process() or not training.sharded:
                        self._keep(self.predictor.model.network.state_dict())

    def _keep(self, weights: dict[str, Tensor]) -> None:
        for name, value in weights.items():
            if name in self.best:
                self.best[name].copy_(value)  # in place: there is no second copy, not even for a moment
            else:
                self.best[name] = value.to("cpu", copy=True)

    def _is_hopeless(self, trainer: L.Trainer) -> bool:
        """Whether validation has not improved for config.patience validations."""
        exhausted = patience_exhausted(self.history, self.improved, self.config.patience)
        if agree(trainer, exhausted) == [0]:
            return False
        patience, taken = self.config.patience, self.taken or trainer.global_step
        self.progress.print_line(
            f"no better validation in {patience} since step {self.improved:,}: the weights of step {taken:,} are taken "
            f"(--resume --patience {2 * patience} waits longer)"
        )
        return True

    def take_best(self) -> None:
        """Give the model the weights that were best in validation."""
        if self.best:
            self.predictor.model.network.load_state_dict(self.best)

    def _log(self, step: int, **figures: float) -> None:
        if self.run_log is not None:
            self.run_log.write(step, self.seconds, **figures)

    def _save(self, trainer: L.Trainer) -> None:
        if self.run is not None:
            if self.run_log is not None:
                self.run_log.sync()
            trainer.save_checkpoint(self.run / "checkpoint")  # AtomicCheckpoints makes the name from step and content

    def state_dict(self) -> dict[str, Any]:
        kept = {"best": self.best, "taken": self.taken, "improved": self.improved}
        return {"history": self.history, "seconds": self.seconds, **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self.seconds = self.earlier = state_dict["seconds"]
        # If the run kept no best weights so far, patience counts from here.
        self.improved = max((int(point["step"]) for point in self.history), default=0)
        if self.config.patience and state_dict.get("best"):
            self.best, self.taken, self.improved = (state_dict[name] for name in ("best", "taken", "improved"))


def patience_exhausted(history: list[dict[str, float]], improved: int, patience: int) -> bool:
    """Whether `patience` validations have passed since the best one; never with patience 0.

    >>> patience_exhausted([{"step": 10}, {"step": 20}, {"step": 30}], improved=10, patience=2)
    True
    """
    return 0 < patience <= sum(point["step"] > improved for point in history)
