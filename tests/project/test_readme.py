"""What the README, the quickstart and the pages for each kind of data say works when it is pasted."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from superbloom import cli
from tests.support import launch

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# Patterns of what is printed when all went well, besides that nothing failed. The quickstart runs the demo.
DEMO = ["259,996\\s+entities", r"this model +\.\d{3}", "Tunisia, Tunis, Thailand"]
PAGES = {
    "docs/quickstart.md": [
        *DEMO,
        "superbloom predict superbloom-demo/model",
        r"bucket \d+ of hash 0",
        "Copenhagen",
        "certified=True",
    ],
    "docs/entities.md": [
        "792  test rows",
        "no other allowed name is more likely",
        "wrote metrics.json, deciles.png and calibration.png to report",
    ],
    "docs/guides/recommendation.md": ["2,000  names", '"Bob Dylan"', "Frankenstein", "similar_to", "repetition"],
    "docs/text.md": ["9  documents", "no other allowed name is more likely", r"\['a hash', 'function'\]"],
}


class Reader:
    """Somebody who pastes the blocks of a page in order, in one folder: sh into bash, python into one session.

    Training is cut to a step or two, the paper to one table, and servers take a free port; all else is as pasted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, "8000"
        self.servers: list[Any] = []
        self.session: dict[str, object] = {}

    def __enter__(self) -> "Reader":
        self.ends = contextlib.ExitStack()
        self.path = self.ends.enter_context(launch.shell_path())
        return self

    def __exit__(self, *failure: object) -> None:
        for server in self.servers:
            server.terminate()
            server.join(60)
            assert server.exitcode == 0 or failure[0]
        self.ends.close()

    def paste(self, page: str) -> str:
        """What all blocks of a page print."""
        printed = []
        for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            short = re.sub(r"(--minutes |minutes=)[\d.]+", r"\g<1>0.002", block)
            short = re.sub(r"--budget \w+", "--only table7 --budget 0.02m", short)
            if language == "python":
                printed.append(self.python(short.replace(":8000", f":{self.port}")))
                continue
            for part in re.split(r"^(superbloom serve .*)$", short, flags=re.MULTILINE):
                if part.startswith("superbloom serve"):
                    self.serve(part)
                else:
                    printed.append(self.sh(part.replace(":8000", f":{self.port}")))
        return "".join(printed)

    def sh(self, block: str) -> str:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", block],
            cwd=self.folder,
            env=os.environ | {"PATH": self.path},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr  # the last line of bash's that begins with + is the one that failed
        return done.stdout

    def python(self, block: str) -> str:
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(block, self.session)
        return printed.getvalue()

    def serve(self, line: str) -> None:
        words = shlex.split(line, comments=True)[1:]
        server = launch.start(self.folder, *words, "--port", 0, "--no-browser")
        self.servers.append(server)
        output = self.folder / launch.OUTPUT
        while not (output.exists() and (found := re.search(r"at http://127.0.0.1:(\d+)/", output.read_text()))):
            assert server.is_alive(), output.read_text()
            time.sleep(0.01)
        self.port = found[1]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_pasted(page, tmp_path):
    with Reader(tmp_path) as reader:
        printed = reader.paste((ROOT / page).read_text())
    for pattern in PAGES[page]:
        assert re.search(pattern, printed), pattern


def test_every_guide_is_pasted():
    assert {f"docs/guides/{page.name}" for page in (ROOT / "docs" / "guides").glob("*.md")} < set(PAGES)


def test_the_readme_works_as_pasted(tmp_path):
    with Reader(tmp_path) as reader:
        printed = reader.paste(README)
    assert [line.split()[-1] for line in printed.splitlines()] == ["True"] * 3
    assert (tmp_path / "my-model" / "config.json").is_file()


def test_the_readme_names_every_command():
    commands = typer.main.get_command(cli.app).commands
    named = set(re.findall(r"^\| `superbloom (\w+)", README, re.MULTILINE))
    assert named == set(commands)
    prepared = set(re.findall(r"^\| `superbloom prepare (\w+)", README, re.MULTILINE))
    assert prepared | {"synthetic"} == set(commands["prepare"].commands)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_what_can_be_asked_of_the_search_can_be():
    """Every line of the block in docs/search.md, on two queries."""
    import torch

    from superbloom import BloomHash, Bonus, top_k
    from superbloom.search import IdPrior

    page = (ROOT / "docs" / "search.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if block.startswith("found = top_k("))
    bloom = BloomHash.random(2000, 2, 10)
    log_probs = torch.randn(2, 2, 200, generator=torch.manual_seed(0)).log_softmax(-1)
    names = {"torch": torch, "top_k": top_k, "Bonus": Bonus, "IdPrior": IdPrior, "bloom": bloom, "log_probs": log_probs}
    names |= {
        "seen": torch.tensor([[3, 7], [5, -1]]),
        "in_stock": torch.arange(2000) % 2 == 0,
        "boost": torch.rand(2000),
        "counts": torch.arange(2000),
    }
    lines = block.splitlines()
    assert len(lines) == 8
    for line in lines:
        call = line.split("#")[0].removeprefix("found = ").strip()
        found = eval(call, names)
        assert found.ids.shape == (2, 20)
        assert bool(found.certified.all())


@pytest.mark.parametrize("path", re.findall(r"\]\(([\w/.-]+)\)", README))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_the_file_tree_lists_every_package_and_only_files_that_exist():
    package = ROOT / "src" / "superbloom"
    tree = README.split("src/superbloom/\n", 1)[1].split("\ntests/", 1)[0]
    parts = [path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    for name in parts:
        assert name.startswith("__") or name in tree, name
    for line in tree.splitlines():
        folder = package / line.split()[0]
        for name in re.findall(r"\w+\.py", line):
            assert (folder / name).is_file() or (package / name).is_file(), (line.split()[0], name)
