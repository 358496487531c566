"""The model card: README.md of a model folder, Markdown for people and for the Hugging Face hub.

    model, how it was trained, what was measured, the old card  →  the new card

Every save writes the card again from the model. Two parts belong to people and are copied from the old card: the front
matter (for example the licence) and the text between the two marks (docs/formats.md). Names may be any text, so they
are escaped in prose and quoted in code.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, fields
from typing import Any

from superbloom.config import SIZES, ModelConfig, TrainConfig
from superbloom.evaluate import cell, markdown, recall_rows, rule
from superbloom.memory import Memory
from superbloom.model import Model

BEGIN = "<!-- yours: what stands between these two marks is kept when a model is saved over this folder -->"
END = "<!-- end of yours -->"
SHOWN_NAMES = 8  # of the catalogue
MAX_NAME_CHARACTERS = 60  # shown of each name
# Characters that are structure in Markdown or HTML, or make addresses, mentions and formulas.
UNSAFE = re.compile(r"[&<>|`*_\[\]\\~#!$@:{}]")
PLAIN = re.compile(r"\w[\w .,()'-]*")  # text that is safe in a command between double quotes

FRONT = """\
library_name: superbloom
tags:
- superbloom
- bloom-filter
- recommendation
- entity-prediction
metrics:
- recall
# license: (TODO by you: take away the # and say which, e.g. apache-2.0)"""

YOURS = """\
- **Data.** TODO by you: where the rows come from, their period, who owns them, and who may see the names.
- **Licence.** TODO by you: of the model, and of the data if it differs; also at the top of this file.
- **Use.** TODO by you: what the model was made for, and what it should not be used for.
- **Contact.** TODO by you: who answers questions."""

LIMITS = """\
- **The catalogue is closed.** The model reads and answers only its names. Other names are refused, and the closest
  one is suggested. `superbloom extend` adds names; some more training teaches the model to distinguish them from those
  in the same buckets.
- **It knows what occurred together in its corpus**, with the time, the gaps and the biases of that corpus. It knows
  nothing else about what the names stand for. It answers frequent names more often, and rare names less well.
- **Names share buckets.** The model divides the probability of a bucket among its names by what the other hash says and
  by how frequent they are. Rare names are sometimes confused. `superbloom inspect` shows which names share a bucket.
- **Certified** means: no other allowed name of the catalogue has a higher score by this model. It does not mean that
  the answer is true, or that the model is good.
- **Probabilities** are this model's belief. `superbloom evaluate --out` draws them against what is observed."""

# What a reader of the folder can learn about the rows, by what the model remembers (Memory.kind).
READABLE = {
    None: """\
- **Every name of the catalogue, and how often it occurs, can be read from this folder.** The rows it was trained on
  are not in it.""",
    "pairs": """\
- **Every name of the catalogue, how often it occurs, and which names stand near it in training rows can be read from
  this folder.** The rows themselves are not in it.""",
    "rows": """\
- **Training and validation rows can be read from this folder**, and every name of the catalogue with its count. Train
  with `--remember pairs` or `--remember none` if others must not see the rows.""",
}
READABLE["both"] = READABLE["rows"]

CITATION = """\
```bibtex
@article{anderson2020superbloom,
  title={Superbloom: Bloom filter meets Transformer},
  author={Anderson, John and Huang, Qingqing and Krichene, Walid and Rendle, Steffen and Zhang, Li},
  journal={arXiv preprint arXiv:2002.04723},
  year={2020}
}
```"""


def card(
    model: Model, training: dict[str, Any], metrics: dict[str, Any], *, name: str = "model", before: str = ""
) -> str:
    """The card of a model. name: the name of its folder. before: the card that is replaced."""
    from superbloom.version import __version__

    front, yours = _kept(before)
    sections = {
        "How to use it": _use(model, name),
        "Sizes": _table(_sizes(model)),
        "Training": _training(training),
        "Memory": _memory(model.memory),
        "Measured": _measured(metrics, name),
        "Intended use and limits": f"{LIMITS}\n{READABLE[None if model.memory is None else model.memory.kind]}",
        "Yours to fill in": f"{BEGIN}\n\n{yours}\n\n{END}",
        "Where it comes from": (
            f"Made with superbloom {__version__}, an implementation of the paper below. All of this except the front "
            f"matter and the part between the marks is written again when the model is saved.\n\n{CITATION}"
        ),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"---\n{front}\n---\n\n# {escaped(name)}\n\n{_what(model)}\n\n{body}\n"


def escaped(text: object) -> str:
    """Any text as one line of Markdown that shows it and does nothing else.

    >>> escaped("AC|DC <b>"), escaped("two" + chr(10) + "lines"), escaped("x" * 99)
    ('AC&#124;DC &#60;b&#62;', 'two&#92;nlines', 'xxx...xxx…')
    """
    whole = str(text)
    shown = whole if len(whole) <= MAX_NAME_CHARACTERS else whole[:MAX_NAME_CHARACTERS] + "…"
    shown = shown if shown.isprintable() else repr(shown)[1:-1]
    return UNSAFE.sub(lambda found: f"&#{ord(found[0])};", shown)


def quoted(text: str) -> str:
    """A name as a Python literal on one line, without < and `, so that it cannot be a mark or a fence.

    >>> print(quoted('say "<b>"'), quoted("two" + chr(10) + "lines"))
    "say \\"\\x3cb>\\"" 'two\\nlines'
    """
    literal = json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)
    return literal.replace("<", "\\x3c").replace("`", "\\x60")


def _what(model: Model) -> str:
    config, targets = model.config, model.target_vocab
    kind = "pieces of words, words and pairs of words" if model.vocab.is_text else "names"
    second = f"; it predicts another {len(targets):,}" if targets is not model.vocab else ""
    names = ", ".join(escaped(targets.name(id_)) for id_ in range(min(SHOWN_NAMES, len(targets))))
    return (
        f"A Superbloom over {config.num_ids:,} {kind}{second}: a Transformer that reads each of them as "
        f"{config.num_hashes} of {config.num_tokens:,} tokens, and answers a `[MASK]` with the best of the whole "
        f"catalogue, with the proof that no other is more likely under this model. The most frequent are: {names}."
    )


def _use(model: Model, name: str) -> str:
    if model.vocab.is_text:
        asked, words = '"… [MASK] …"', '--text "… [MASK] …"'
    else:
        first = model.vocab.name(0)
        asked = f"[{quoted(first)}, MASK]"
        words = f'{_word(first, "NAME")} "[MASK]"'
    folder = _word(name, "MODEL")
    return (
        f"```python\nfrom superbloom import MASK, Superbloom\n\nmodel = Superbloom.from_pretrained({quoted(name)})\n"
        f"model.predict({asked}, k=10)\n```\n\n"
        f"```sh\nsuperbloom predict {folder} {words}\n"
        f"superbloom serve {folder}    # a page to play with, and why each answer\n```"
    )


def _word(text: str, instead: str) -> str:
    """A text as one quoted word of a command if it is plain, otherwise `instead`."""
    return f'"{text}"' if PLAIN.fullmatch(text) else instead


def _sizes(model: Model) -> dict[str, str]:
    config, weights = model.config, model.network.num_parameters()
    sizes = {
        "names": f"{config.num_ids:,}",
        "hash functions m": f"{config.num_hashes}",
        "names to a bucket α": f"{config.alpha}",
        "tokens": f"{config.num_tokens:,}",
        "width d, heads, feed-forward": f"{config.dim}, {config.heads}, {config.ffn_dim}",
        "layers L": f"{config.layers}",
        "names in a context, at most": f"{config.seq_len}",
        "parameters": f"{weights:,} ({weights * 4 / 1e6:,.1f} MB)",
    }
    if model.target_vocab is not model.vocab:
        sizes["names that are predicted"] = f"{len(model.target_vocab):,}"
    added = 0 if model.prior is None else int((model.prior.counts < 0).sum())
    if added:
        sizes["names added after training"] = f"{added:,}"
    shown = {"num_hashes", "alpha", "dim", "heads", "ffn_dim", "layers", "seq_len", *SIZES}
    if others := _other_than_default(asdict(config), ModelConfig, shown):
        sizes["other options"] = others
    return sizes


def _training(training: dict[str, Any]) -> str:
    facts = {}
    if type(steps := training.get("steps")) is int:
        taken = training.get("taken")
        facts["steps"] = f"{steps:,}" + (f"; the weights are those of step {taken:,}" if _earlier(taken, steps) else "")
    if type(seconds := training.get("seconds")) is float:
        facts["minutes"] = f"{seconds / 60:.1f}"
    if type(corpus := training.get("corpus")) is str:
        facts["fingerprint of the corpus"] = _code(corpus)
    if type(config := training.get("config")) is dict:
        facts["options"] = _other_than_default(config, TrainConfig, set()) or "all defaults"
    if training.get("interrupted") is True:
        facts["ended"] = "interrupted before its end"
    return _table(facts) if facts else "It is not known how it was trained."


def _earlier(taken: object, steps: int) -> bool:
    return type(taken) is int and taken < steps


def _other_than_default(given: dict[str, Any], kind: type, shown: set[str]) -> str:
    """Options that differ from their defaults, as name=value, except those already shown."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    others = {name: value for name, value in given.items() if name not in shown and value != defaults.get(name)}
    return ", ".join(_code(f"{name}={value}") for name, value in others.items())


def _code(text: str) -> str:
    return f"`{text}`" if re.fullmatch(r"[\w.=+-]+", text, re.ASCII) else escaped(text)


def _memory(memory: Memory | None) -> str:
    if memory is None or not memory.weights:
        return "The model remembers no pairs and no rows. It answers with the network alone."
    facts = {}
    if memory.pairs is not None:
        facts["pairs"] = f"{len(memory.pairs.ids):,}, at most {memory.neighbours:,} for a name"
    if memory.rows is not None:
        keys = "without keys" if memory.rows.key_starts is None else f"{len(memory.rows.key_starts) - 1:,} keys"
        facts["rows"] = f"{len(memory.rows.starts) - 1:,} pieces of rows, {len(memory.rows.ids):,} ids in all, {keys}"
    if memory.half_life is not None:
        facts["half-life"] = f"{memory.half_life:g} events"
    facts["weights"] = ", ".join(f"{part} {weight:.3f}" for part, weight in memory.weights.items())
    return (
        "The model keeps what it counted in training and validation rows. The probability of a name is the weighted "
        f"mean of what the network and each part of this memory say.\n\n{_table(facts)}"
    )


def _measured(metrics: dict[str, Any], name: str) -> str:
    """The recall table of the test rows, or how to get one. The metrics come from a file, so they may be anything."""
    folder = _word(name, "MODEL")
    try:
        figures = metrics["test"]
        ks = list(figures["recall"])
        table = [[escaped(row), *(cell(recall[k]) for k in ks)] for row, recall in recall_rows(figures).items()]
        what = f"{figures['rows']:,} hidden elements of test rows; {rule(figures)}"
        header = [what, *(f"recall@{escaped(k)}" for k in ks)]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        ks = []
    if not ks:
        return (
            f"Nothing was measured on test rows before this was saved.{_validation(metrics)} To measure it and to "
            "compare it with counting:\n\n"
            f"```sh\nsuperbloom evaluate {folder} CORPUS --out report\n```\n\n"
            "In Python, `model.evaluate(Corpus.open(…))` before `model.save_pretrained(…)` puts the figures here."
        )
    return (
        markdown(header, table) + "\n\nrecall@k is the share of hidden elements among the first k answers, with 95 % "
        f"intervals. The yardsticks only count. To repeat it: `superbloom evaluate {folder} CORPUS`."
    )


def _validation(metrics: dict[str, Any]) -> str:
    """The last validation during training."""
    try:
        last = metrics["history"][-1]
        return f" On validation rows, recall@10 was {last['recall_at_10']:.3f} at step {last['step']:,}."
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return ""


def _table(facts: dict[str, str]) -> str:
    return markdown(["", ""], [[name, value] for name, value in facts.items()])


def _kept(before: str) -> tuple[str, str]:
    """What a new card keeps from the old one: the front matter and the text between the marks.

    A card without the two marks was written by somebody else or by an earlier release. All of its text is kept.
    """
    found = re.match(r"---\n(.*?)\n---[ \t]*(?:\n|\Z)", before, re.DOTALL)
    front, body = (FRONT, before) if found is None else (found[1], before[found.end() :])
    yours, end, _ = body.partition(BEGIN)[2].rpartition(END)
    if end:
        return front, yours.strip()
    return front, f"{YOURS}\n\n### The card that was here before\n\n{body.strip()}" if body.strip() else YOURS
