"""Write docs/options.md: every option with its default and help, from the dataclasses of config/.

python -m tools.options_page
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from superbloom import config
from superbloom.config.option import default_of

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
GROUPS: dict[type, str] = {
    config.ModelConfig: "The model: `superbloom train`, `superbloom plan`, `Superbloom(…)`",
    config.TrainConfig: "Training: `superbloom train`, `superbloom plan`, `Superbloom.fit(…)`",
    config.QueryOptions: "Queries: `superbloom predict`, `predict(…)`, `POST /v1/predict`",
    config.HeadOptions: "The output layer: `superbloom predict`, `evaluate` and `serve`, `Predictor(…)`",
    config.EvaluateOptions: "Evaluation: `superbloom evaluate`, `evaluate(…)`",
    config.RecommendOptions: "Recommendation: `superbloom recommend`, `recommend(…)`, `POST /v1/recommend`",
    config.BatchOptions: "Many users: `superbloom recommend`",
    config.SimilarOptions: "Similar names: `superbloom similar`, `similar(…)`, `similar_items(…)`, `POST /v1/similar`",
    config.ExtendOptions: "New names: `superbloom extend`, `extend(…)`",
    config.SequencesOptions: "Reading sequences: `superbloom prepare sequences`",
    config.InteractionsOptions: "Reading logs: `superbloom prepare interactions`, `Corpus.from_interactions(…)`",
    config.WikipediaOptions: "Reading Wikipedia dumps: `superbloom prepare wikipedia`",
    config.TextOptions: "Reading text: `superbloom prepare text`",
    config.SyntheticOptions: "Made-up worlds: `superbloom prepare synthetic`",
    config.WriteOptions: "Writing: every command with `--out` except `reproduce`, `prepare_sequences(…)` …",
    config.Settings: "Serving: `superbloom serve`",
}
HEADER = """# Options

Every option with its name in Python and its default. The command line writes `--batch-size` for `batch_size`. Where the
name differs, the table shows it. `superbloom serve` also takes every option from an environment variable: `SUPERBLOOM_`
and the name in capitals. `python -m tools.options_page` writes this page from `src/superbloom/config/`.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEADER, *(_section(kind, title) for kind, title in GROUPS.items())])


def _section(kind: type, title: str) -> str:
    lines = [f"## {title}\n", "| option | default | meaning |", "|---|---|---|"]
    lines += [_row(kind, spec) for spec in fields(kind) if "help" in spec.metadata]
    return "\n".join(lines) + "\n"


def _row(kind: type, spec: Any) -> str:
    flag, shown, default = spec.metadata["flag"], spec.metadata["shown_default"], default_of(spec)
    name = f"`{spec.name}`"
    if kind is config.Settings:
        name += f", `{config.environment_name(spec.name)}`"
    if flag is not None and flag != f"--{spec.name.replace('_', '-')}":
        name += f", `{flag}`"
    if shown is None:
        written = f"{default:,}" if type(default) is int else repr(default)
        shown = "none" if default is None or default == () else f"`{written}`"
    if spec.metadata["gigabytes"]:
        shown = f"{default:,} bytes; `--memory {default / 1e9:g}` in GB"
    help_ = spec.metadata["help"].replace("|", "\\|")
    return f"| {name} | {shown} | {help_[:1].upper()}{help_[1:]} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
