"""Options are written once: the command line, Python's docstrings, HTTP and the page of options say the same."""

import inspect
from dataclasses import fields

import pytest
import typer

from superbloom import Superbloom, config
from superbloom.cli import app
from tools.options_page import GROUPS, PAGE, page

# The commands that take the options of a dataclass.
COMMANDS = {
    "demo": (config.WriteOptions,),
    "train": (config.ModelConfig, config.TrainConfig, config.WriteOptions),
    "plan": (config.ModelConfig, config.TrainConfig),
    "predict": (config.QueryOptions, config.HeadOptions),
    "evaluate": (config.EvaluateOptions, config.HeadOptions, config.WriteOptions),
    "recommend": (config.RecommendOptions, config.BatchOptions, config.WriteOptions),
    "similar": (config.SimilarOptions,),
    "extend": (config.ExtendOptions, config.WriteOptions),
    "serve": (config.Settings, config.HeadOptions),
    "prepare sequences": (config.SequencesOptions, config.WriteOptions),
    "prepare interactions": (config.InteractionsOptions, config.WriteOptions),
    "prepare wikipedia": (config.WikipediaOptions, config.WriteOptions),
    "prepare text": (config.TextOptions, config.WriteOptions),
    "prepare synthetic": (config.SyntheticOptions, config.WriteOptions),
}


def parameters(command: str) -> dict[str, str]:
    """The parameters of a command and their help."""
    found = typer.main.get_command(app)
    for part in command.split():
        found = found.commands[part]
    return {parameter.name: parameter.help for parameter in found.params if hasattr(parameter, "help")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_every_option_of_its_dataclasses(command):
    known = parameters(command)
    for kind in COMMANDS[command]:
        for spec in fields(kind):
            if "help" in spec.metadata:
                assert known[spec.name].startswith(spec.metadata["help"]), spec.name


def test_every_dataclass_of_options_has_a_command_and_a_section():
    named = {kind for kinds in COMMANDS.values() for kind in kinds}
    assert named == set(GROUPS)
    every = {
        kind for name, kind in inspect.getmembers(config, inspect.isclass) if hasattr(kind, "__dataclass_fields__")
    }
    assert every - named == {config.Preset, config.SearchOptions}


def test_the_page_of_options_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.options_page"


def test_docstrings_list_the_options():
    for spec in fields(config.QueryOptions):
        assert f"{spec.name} = " in Superbloom.predict.__doc__
        assert spec.metadata["help"] in Superbloom.predict.__doc__
