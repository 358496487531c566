"""The playground in a real browser: a server in a thread, a visitor, and what a visitor sees."""

import json
import os
import re
import shutil
import threading
import time
import unicodedata
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import Browser, Page, expect

from superbloom import Superbloom
from superbloom.config.serving import Settings
from superbloom.serve.app import make_app
from superbloom.serve.service import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


TAG, LINES, BACKWARDS, LONG = "<img src=x onerror=alert(1)>", "line one\nline two", "\u202edrawkcab", "L" + "ong" * 666
HOSTILE = [TAG, LINES, BACKWARDS, LONG]
SMALL = {"dim": 32, "heads": 2, "ffn_dim": 32, "layers": 1, "dropout": 0.0}
FAST = {"batch_size": 32, "learning_rate": 5e-3, "warmup": 20, "quiet": True}
ONE, TWO, SEVEN = "ring 3 name 1", "ring 3 name 2", "ring 7 name 7"
RECALL = {"1": {"value": 0.2, "low": 0.15, "high": 0.26}, "10": {"value": 0.8, "low": 0.7, "high": 0.9}}
REPORT = {
    "history": [{"step": 50, "seconds": 1.5, "recall_at_10": 0.4}, {"step": 100, "seconds": 3.0, "recall_at_10": 0.8}],
    "test": {
        "split": "test",
        "rows": 79,
        "recall": RECALL,
        "by sum": {"10": {"value": 0.7, "low": 0.6, "high": 0.8}},
        "yardsticks": {"popularity": {"1": {"value": 0.01, "low": 0.0, "high": 0.05}}},
        "deciles": [{"recall_at_1": 0.1, "recall_at_10": 0.5, "rows": 8}] * 10,
        "certified": 1.0,
    },
}


@contextmanager
def serving(model: Superbloom, settings: Settings | None = None, **told: object) -> Iterator[str]:
    """The address of a server of a model, in a thread."""
    served = Served(model.predictor, "rings", model.training, {"history": [], "test": None} | told)
    config = uvicorn.Config(make_app(lambda: served, settings), port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


class Visitor:
    """Opens pages, and notes what no page may do: ask other hosts, log errors, open dialogs."""

    def __init__(self, browser: Browser, **options: object) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda line: self.wrong.append(line.text) if line.type in ("error", "warning") else None
        )

    def open(self, address: str, *query: tuple[str, object]) -> Page:
        self.page.on("request", lambda one: None if one.url.startswith(address) else self.wrong.append(one.url))
        self.page.goto(f"{address}#{urlencode(query)}" if query else address)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert [line for line in self.wrong if not any(part in line for part in self.expected)] == []


def keep(page: Page, name: str) -> None:
    """A picture for people, if a folder is given for them."""
    if folder := os.environ.get("SUPERBLOOM_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def asked(address: str, path: str, body: object) -> dict:
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def has_chips(page: Page, *names: str) -> None:
    expect(page.locator(".chip .body")).to_have_text(list(names))


def answers(page: Page) -> list[str]:
    """The names that are answered, once they are there."""
    expect(page.locator("#columns")).to_be_visible()
    expect(page.locator("#columns.stale")).to_have_count(0)
    return page.locator(".answer .name").all_text_contents()


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.textContent || document.activeElement.id")


def percent(text: str) -> float:
    """A probability as the page writes it: 12.3 %, 1.25·10⁻⁷ %, <0.001 %."""
    number = re.sub("·?10([⁻⁰¹²³⁴-⁹]+)", lambda found: "e" + unicodedata.normalize("NFKC", found[1]), text)
    number = re.sub("^e", "1e", number.removesuffix(" %").removeprefix("<").replace("−", "-"))
    return float(number) / 100
