"""What the README says works when it is pasted."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_block_runs_as_pasted(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.endswith("True") for line in lines)
    assert (tmp_path / "my-model" / "config.json").is_file()


def test_the_commands_run_as_pasted_on_small_files(tmp_path, request):
    rows = ["Miles Davis\tJazz\tJohn Coltrane", "Jazz\tPiano\tMiles Davis", "Piano\tBach\tOrgan"] * 40
    import gzip

    (tmp_path / "jazz.txt").write_text("John Coltrane\nJazz\n")
    (tmp_path / "new-names.txt").write_text("Bill Evans\n")
    (tmp_path / "articles.txt").write_text("Miles Davis plays the trumpet. John Coltrane plays jazz.\n\n" * 40)
    events = [(f"buyer {i % 7}", f"product {i % 5}", i) for i in range(60)]
    log = dict(zip(("buyer", "product", "at"), map(list, zip(*events, strict=True)), strict=True))
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    (tmp_path / "playlists.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (commands,) = blocks("sh")
    ran, server, port = 0, None, "8000"
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "superbloom"
        if words[2] == "wikipedia":  # needs a dump; tests/test_cli.py reads one
            continue
        # As pasted, but for a catalogue of six names alpha has to be smaller, and half an hour is long.
        words = [{"10": "2", "30": "0.02"}.get(word, word).replace(":8000", f":{port}") for word in words]
        if words[1] == "serve":
            server = subprocess.Popen(
                [sys.executable, "-m", *words, "--port", "0", "--no-browser"],
                cwd=tmp_path,
                stderr=subprocess.PIPE,
                text=True,
            )
            request.addfinalizer(server.kill)
            port = next(found[1] for line in server.stderr if (found := re.search(r"at http://127.0.0.1:(\d+)/", line)))
            ran += 1
            continue
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        ran += 1
    assert ran == 15
    server.terminate()
    assert server.wait(60) == 0
    server.stderr.close()
    assert json.loads((tmp_path / "report" / "metrics.json").read_text())["split"] == "test"


def test_what_can_be_asked_of_the_search_can_be():
    """Every line of the block in docs/search.md, on two queries."""
    import torch

    from superbloom import BloomHash, Bonus, top_k

    page = (Path(__file__).parents[1] / "docs" / "search.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    bloom = BloomHash.random(2000, 2, 10)
    log_probs = torch.randn(2, 2, 200, generator=torch.manual_seed(0)).log_softmax(-1)
    names = {"torch": torch, "top_k": top_k, "Bonus": Bonus, "bloom": bloom, "log_probs": log_probs}
    names |= {
        "seen": torch.tensor([[3, 7], [5, -1]]),
        "in_stock": torch.arange(2000) % 2 == 0,
        "boost": torch.rand(2000),
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
    assert (Path(__file__).parents[1] / path).exists()


def test_the_file_tree_lists_every_module():
    package = Path(__file__).parents[1] / "src" / "superbloom"
    for module in package.glob("*.py"):
        if not module.name.startswith("__") and module.name != "errors.py":
            assert module.name in README, module.name
