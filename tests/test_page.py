"""The page in a real browser, on the real server: what a visitor can do, and what a hostile name cannot.

Skipped without Chromium. SUPERBLOOM_SCREENSHOTS names a folder for pictures of what was tested.
"""

import json
import os
import re
import shlex
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest
from conftest import rings

from superbloom import Corpus, Superbloom
from superbloom.corpus import split_of
from superbloom.vocab import Vocab

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, Route, expect  # noqa: E402

from superbloom.serve import app as app_module  # noqa: E402
from superbloom.serve.app import PAGE, make_app  # noqa: E402
from superbloom.serve.service import Served  # noqa: E402
from superbloom.serve.settings import Settings  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]

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
        "yardsticks": {"popularity": {"1": {"value": 0.01, "low": 0.0, "high": 0.05}}},
        "deciles": [{"recall_at_1": 0.1, "recall_at_10": 0.5, "rows": 8}] * 10,
        "certified": 1.0,
    },
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Rings, and names that try to be more than text, which keep to one another."""
    plain = rings()
    rows = [[plain.vocab.name(id_) for id_ in plain.row(number)] for number in range(len(plain))]
    return Corpus.from_sequences([*rows, *[HOSTILE] * 40])


@pytest.fixture(scope="module")
def model(corpus) -> Superbloom:
    return Superbloom(alpha=4, **SMALL).fit(corpus, steps=150, **FAST)


@pytest.fixture(scope="module")
def text_model() -> Superbloom:
    words = ["miles davis", "miles", "davis", "is", "a", "jazz", "musician", "plays", "piano", "."]
    kinds = np.array([2 if " " in word else 0 for word in words], dtype=np.int8)
    vocab, _ = Vocab.from_arrays(words, np.arange(len(words), 0, -1), kinds, "lowercase")
    rows = [vocab.segmenter.segment("Miles Davis is a jazz musician. Davis plays piano.").ids.tolist()] * 40
    lists, keys = pa.large_list(pa.int32()), [str(number) for number in range(40)]
    columns = {"key": pa.array(keys, pa.large_string()), "ids": pa.array(rows, lists), "split": split_of(keys)}
    table = pa.table(columns | {"sentences": pa.array([[0]] * 40, lists)})
    options = {"num_hashes": 2, "alpha": 2, "dim": 16, "seq_len": 16}
    return Superbloom("text", **options).fit(Corpus(vocab, table), steps=2, quiet=True)


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


@pytest.fixture(scope="module")
def address(model) -> Iterator[str]:
    with serving(model, **REPORT) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not for the session: while it runs, no other test of this process could start an event loop.
    with playwright.sync_playwright() as found:
        running = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


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


@pytest.fixture
def visitor(browser) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    visitor.close()


@pytest.fixture
def spoil(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Serves from now on a copy of the page in which something else stands in place of what is there."""

    def spoil(file: str, before: str, after: str) -> Path:
        folder = shutil.copytree(PAGE, tmp_path / "page")
        text = (folder / file).read_text()
        assert text.count(before) == 1
        (folder / file).write_text(text.replace(before, after))
        monkeypatch.setattr(app_module, "PAGE", folder)
        return folder

    return spoil


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


def minus(text: str) -> float:
    return float(text.replace("−", "-"))


def choose_with_the_keyboard(visitor: Visitor, address: str, patience: float = 5000) -> None:
    """patience: milliseconds in which arrow keys have to move."""
    page = visitor.open(address, ("k", 5))
    while page.evaluate("document.activeElement.id") != "name":
        page.keyboard.press("Tab")
    page.keyboard.type("ring 3")
    box = page.get_by_role("combobox", name="Context")
    expect(box).to_have_attribute("aria-expanded", "true")
    options = page.get_by_role("listbox").get_by_role("option")
    assert options.count() == 8
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(options.first).to_have_attribute("aria-selected", "true", timeout=patience)
    expect(box).to_have_attribute("aria-activedescendant", options.first.get_attribute("id"))
    first = options.first.locator(".name").text_content()
    keep(page, "suggestions")
    page.keyboard.press("Enter")
    has_chips(page, first)
    page.keyboard.type("ring 3 name 2")
    expect(options).to_have_count(1)
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    page.keyboard.press("Enter")  # a whole name needs no list
    expect(page.locator(".chip")).to_have_count(2)
    has_chips(page, first, TWO)
    assert len(answers(page)) == 5
    page.keyboard.press("Backspace")
    has_chips(page, first)


def test_names_are_chosen_with_the_keyboard_alone(visitor, address, check):
    choose_with_the_keyboard(visitor, address)
    check(20, "names are chosen, taken out and answered by the keyboard alone")


def test_a_page_that_needs_a_mouse_is_noticed(visitor, model, spoil, check):
    spoil("suggest.js", 'if ((event.key === "ArrowDown"', 'if ((event.key === "Nothing"')
    with serving(model) as address, pytest.raises(AssertionError, match="aria-selected") as noticed:
        choose_with_the_keyboard(visitor, address, patience=300)
    check.twin(20, "a list that arrow keys do not move in", str(noticed.value).splitlines()[0])


def test_chips_move_and_go(visitor, address):
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("c", SEVEN))
    expect(page.locator(".ghost")).to_be_visible()  # the place to predict comes last
    page.get_by_role("button", name="Place [MASK]").click()
    has_chips(page, ONE, TWO, SEVEN, "[MASK]")
    expect(page.locator(".ghost")).to_be_hidden()
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    has_chips(page, ONE, "[MASK]", TWO, SEVEN)
    assert focused(page) == "[MASK]"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    has_chips(page, ONE, "[MASK]", SEVEN)
    assert focused(page) == SEVEN
    page.keyboard.press("Home")
    page.keyboard.press("Alt+ArrowRight")
    has_chips(page, "[MASK]", ONE, SEVEN)
    assert focused(page) == ONE
    page.get_by_role("button", name="Move left:").click()
    has_chips(page, ONE, "[MASK]", SEVEN)
    page.locator(".chip").nth(2).get_by_role("button", name="Take out").click()
    page.keyboard.press("End")
    assert focused(page) == "name"
    page.get_by_role("button", name="Place [MASK]").click()
    has_chips(page, ONE, "[MASK]", "[MASK]")
    expect(page.locator(".answers section")).to_have_count(2)
    page.get_by_role("button", name="Clear").click()
    has_chips(page)
    expect(page.locator("#columns")).to_be_hidden()


def test_an_unknown_name_comes_with_the_closest(visitor, address):
    visitor.expected = ("422",)
    page = visitor.open(address, ("c", ONE))
    answers(page)
    page.locator("#name").press_sequentially("ring 3 nome 2")
    page.keyboard.press("Enter")
    message = page.get_by_role("alert")
    expect(message.locator("p")).to_contain_text("'ring 3 nome 2' is not among the 196 names")
    message.get_by_role("button", name=TWO, exact=True).click()
    has_chips(page, ONE, TWO)
    expect(message).to_be_empty()
    page = visitor.open(address, ("c", ONE), ("c", "ring 3 nome 7"))  # and so in a link
    message.get_by_role("button", name="ring 3 name 7", exact=True).click()
    has_chips(page, ONE, "ring 3 name 7")


def test_answers_follow_the_context(visitor, address, model):
    page = visitor.open(address, ("c", ONE), ("k", 5))
    assert answers(page) == [answer.name for answer in model.predict([ONE], k=5)]
    added = page.locator(".answer .name").last.text_content()
    page.get_by_role("button", name=re.compile("^Add .*to the context")).last.press("Enter")
    expect(page.locator(".chip")).to_have_count(2)
    expected = model.predict([ONE, added], k=5)
    expect(page.locator(".answer .name")).to_have_text([answer.name for answer in expected])
    assert page.evaluate("document.activeElement.classList.contains('plus')")  # the focus stays in the list
    expect(page.locator(".answer .chance").first).to_have_text(re.compile(r"^[\d.–<]+ %$"))
    page.get_by_role("combobox", name="Answers").select_option("10")
    expect(page.locator(".answer")).to_have_count(10)
    page.get_by_label("leave out names of the context").check()
    left = model.predict([ONE, added], k=10, exclude=[ONE, added])
    expect(page.locator(".answer .name")).to_have_text([answer.name for answer in left])
    expect(page.locator(".dot-out")).not_to_have_count(0)
    expect(page.locator("#live")).to_contain_text("10 answers: ")
    expect(page.locator("#live")).to_contain_text("certified.")


def test_a_range_is_shown_where_the_share_is_not_known(visitor, address):
    page = visitor.open(address, ("c", ONE), ("k", 5), ("beam", 1))
    answers(page)
    (mask,) = asked(address, "v1/predict", {"context": [ONE], "k": 5, "beam": 1, "exact": False})["masks"]
    first = mask["predictions"][0]
    assert first["at_least"] < first["probability"]
    expect(page.locator(".answer .chance").first).to_contain_text("–")
    widths = page.locator(".answer").first.locator(".bar span").evaluate_all("all => all.map(one => one.style.width)")
    sure, maybe = (float(width.rstrip("%")) for width in widths)
    assert sure == pytest.approx(100 * first["at_least"] / first["probability"], abs=0.1)
    assert sure + maybe == pytest.approx(100, abs=0.1)


def test_an_overtaken_answer_is_dropped(visitor, address, model):
    page = visitor.open(address, ("k", 5))
    held: list[Route] = []
    page.route("**/v1/predict", lambda route: route.continue_() if held else held.append(route))
    page.locator("#name").fill(ONE)
    page.keyboard.press("Enter")  # asks whether there is such a name
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()
    expect(page.locator(".chip")).to_have_count(1)
    answers(page)
    page.unroute("**/v1/predict")

    held.clear()
    page.route("**/v1/predict", lambda route: route.continue_() if held else held.append(route))
    page.get_by_role("button", name=re.compile("^Add ")).first.click()
    while not held:
        page.wait_for_timeout(10)
    expect(page.locator("#columns.stale")).to_have_count(1)  # the old ones stay, dimmed
    page.get_by_role("button", name="Take out").last.click()
    expect(page.locator("#columns.stale")).to_have_count(0)
    expected = [answer.name for answer in model.predict([ONE], k=5)]
    assert answers(page) == expected
    page.unroute_all(behavior="ignoreErrors")
    assert answers(page) == expected


def test_why_an_answer_adds_up(visitor, address):
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("k", 5))
    answers(page)
    row = page.locator(".answer").nth(1)
    row.press("Enter")
    expect(row).to_have_attribute("aria-expanded", "true")
    (mask,) = asked(address, "v1/predict", {"context": [ONE, TWO], "k": 5, "explain": True})["masks"]
    why, score = mask["why"][1], mask["predictions"][1]["score"]
    panel = page.locator(f"#{row.get_attribute('aria-controls')}")
    *parts, total = (minus(text) for text in panel.locator(".sum .number").all_text_contents())
    assert len(parts) == 3  # two hashes and the prior
    assert sum(parts) == pytest.approx(total, abs=0.02)
    assert total == pytest.approx(score, abs=0.01)
    for token in why["tokens"]:
        expect(panel.locator(".sum")).to_contain_text(f"Hash {token['hash'] + 1}, bucket {token['bucket']}")
        expect(panel.locator(".sum")).to_contain_text(f"number {token['rank']} of ")
    mates = panel.locator(".mates .entry").all_text_contents()
    assert mates == [mate for token in why["tokens"] for mate in token["mates"]]
    assert panel.locator(".needs .name").all_text_contents() == [ONE, TWO]
    shown = [minus(text) for text in panel.locator(".needs .number").all_text_contents()]
    assert shown == pytest.approx([one["difference"] for one in why["depends_on"]], abs=0.01)
    sides = panel.locator(".needs .diverging span").evaluate_all("all => all.map(one => one.className)")
    assert sides == ["adds" if value >= 0 else "takes" for value in shown]
    keep(page, "why")
    row.press("Enter")
    expect(panel).to_be_hidden()


@pytest.mark.parametrize("beam", [1, 12])
def test_the_certificate_is_drawn(visitor, address, beam):
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("k", 5), ("beam", beam))
    answers(page)
    query = {"context": [ONE, TWO], "k": 5, "beam": beam, "exact": False, "explain": True}
    (mask,) = asked(address, "v1/predict", query)["masks"]
    proof = mask["certificate"]
    assert mask["certified"] == (beam == 12) == (proof["kth"] > proof["bound"])

    expect(page.locator(".badge")).to_have_text("certified" if mask["certified"] else "not certified")
    sentence = page.locator(".proof").text_content()
    assert f"{proof['bound']:.2f}".replace("-", "−") in sentence
    assert f"{proof['kth']:.2f}".replace("-", "−") in sentence
    assert sentence.endswith("proven that none is missing." if mask["certified"] else "not certified.")
    for kind, count in [
        ("answer", sum(point["answer"] for point in proof["points"])),
        ("unseen", sum(not point["opened"] for point in proof["points"])),
    ]:
        expect(page.locator(f".dot-{kind}")).to_have_count(count)
    # Certified exactly when the corner lies below the line, also in pixels.
    line = page.locator("line.level").evaluate("one => ['x1', 'y1', 'x2', 'y2'].map(a => +one.getAttribute(a))")
    corner = page.locator(".corner rect").evaluate("one => ['x', 'y'].map(a => +one.getAttribute(a) + 5)")
    x1, y1, x2, y2 = line
    level = y1 + (corner[0] - x1) * (y2 - y1) / (x2 - x1)  # of the line at the corner; pixels grow downwards
    assert (corner[1] > level) == mask["certified"]
    expect(page.locator(".open-question")).to_have_count(0 if mask["certified"] else 1)

    walk = page.get_by_label("Walk through the points, best first")
    walk.press("ArrowRight")
    best = sorted(proof["points"], key=lambda point: -sum(point["values"]))[1]["name"]
    assert best in walk.get_attribute("aria-valuetext")
    expect(page.locator(".plane .ring")).to_have_count(1)
    expect(page.locator(".said")).to_contain_text(best)
    page.get_by_text("The picture in numbers").click()
    expect(page.locator(".certificate table")).to_contain_text(mask["predictions"][0]["name"])
    keep(page, "certified" if mask["certified"] else "not-certified")


def test_the_certificate_says_when_every_id_was_scored(visitor, address):
    page = visitor.open(address, ("c", ONE), ("k", 20))
    answers(page)
    expect(page.locator(".badge")).to_have_text("certified")
    expect(page.locator(".proof")).to_contain_text("Every one of the 196 ids was scored")
    page.get_by_role("button", name=re.compile("See what .* would prove")).click()
    expect(page.locator("#panel-ask input[name=way][value=beam]")).to_be_checked()


@pytest.mark.parametrize("hashes", [1, 3])
def test_the_certificate_of_other_numbers_of_hashes(visitor, corpus, hashes):
    options = SMALL | {"num_hashes": hashes, "alpha": 1 if hashes == 1 else 4}
    with serving(Superbloom(**options).fit(corpus, steps=2, quiet=True)) as address:
        page = visitor.open(address, ("c", ONE), ("k", 3), ("beam", 4))
        answers(page)
        expect(page.locator(".plane .dot-answer")).to_have_count(3)
        select = page.get_by_label("Hashes")
        if hashes == 1:
            expect(select).to_have_count(0)
            expect(page.locator(".plane .label")).to_have_text(["value under hash 1"])
        else:
            select.select_option(label="2 and 3")
            expect(page.locator(".plane .label")).to_have_text(["value under hash 2", "value under hash 3"])
            expect(
                page.get_by_text(re.compile("The line is what an unopened id would need .* under hash 1"))
            ).to_be_visible()
        keep(page, f"{hashes}-hashes")


def test_the_report(visitor, address, corpus):
    page = visitor.open(address)
    page.get_by_role("tab", name="Ask").focus()
    page.keyboard.press("ArrowRight")
    panel = page.get_by_role("tabpanel", name="Report")
    expect(panel.locator("table.recall tbody th")).to_have_text(["this model", "popularity"])
    expect(panel.locator("table.recall .own .value")).to_have_text(["0.200", "0.800"])
    expect(panel.locator("table.recall .own")).to_contain_text("0.150–0.260")
    expect(panel.locator("svg.plot")).to_have_count(2)
    expect(panel.locator("svg.plot .mark-1")).to_have_count(12)
    expect(panel.locator(".facts").last).to_contain_text("196")
    keep(page, "report")
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="API")).to_have_attribute("aria-selected", "true")


def test_without_a_report_it_is_told_how_to_get_one(visitor, model):
    with serving(model) as address:
        page = visitor.open(address, ("tab", "report"))
        expect(page.locator("#panel-report pre")).to_contain_text("superbloom serve MODEL --report REPORT")


def test_the_api_tab_gives_a_command_that_works(visitor, address, model):
    page = visitor.open(address, ("c", TAG), ("m", ""), ("c", LINES), ("k", 3), ("skip", 1), ("tab", "api"))
    command = shlex.split(page.locator(".curl").text_content().replace("\\\n", " "))
    assert command[:3] == ["curl", "-s", f"{address}v1/predict"]
    body = json.loads(command[command.index("-d") + 1])
    assert body == {"context": [TAG, None, LINES], "k": 3, "exclude": [TAG, LINES]}
    assert len(asked(address, "v1/predict", body)["masks"][0]["predictions"]) == 3
    operations = page.locator(".operation")
    with urllib.request.urlopen(f"{address}openapi.json") as response:
        paths = json.load(response)["paths"]
    assert operations.count() == sum(len(path) for path in paths.values())
    operations.filter(has_text="/v1/predict").first.locator("summary").click()
    expect(operations.first).to_contain_text("min_score")
    expect(operations.first).to_contain_text("masks[].predictions[].at_least")
    keep(page, "api")


def test_a_link_is_the_whole_state(visitor, address, browser):
    page = visitor.open(address, ("c", ONE), ("m", ""), ("c", TWO), ("k", 20), ("skip", 1), ("beam", 7))
    has_chips(page, ONE, "[MASK]", TWO)
    assert len(answers(page)) == 20
    expect(page.get_by_role("combobox", name="Answers")).to_have_value("20")
    expect(page.get_by_label("leave out names of the context")).to_be_checked()
    expect(page.get_by_label("one round of")).to_be_checked()
    expect(page.get_by_label("buckets a hash in one round")).to_have_value("7")
    page.locator(".answer").nth(2).click()
    page.get_by_role("tab", name="Report").click()
    page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    page.go_back()
    expect(page.get_by_role("tab", name="Ask")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link, opened = page.evaluate("window.copied"), page.locator(".answer .name").nth(2).text_content()
    page.get_by_role("button", name="Take out").first.click()
    has_chips(page, "[MASK]", TWO)
    page.go_back()
    has_chips(page, ONE, "[MASK]", TWO)
    page.go_forward()
    has_chips(page, "[MASK]", TWO)

    other = Visitor(browser)
    other.page.goto(link)
    has_chips(other.page, ONE, "[MASK]", TWO)
    assert len(answers(other.page)) == 20
    expect(other.page.locator(".answer[aria-expanded=true] .name")).to_have_text(opened)
    other.close()


def faults(browser: Browser, address: str, width: int) -> list[str]:
    """What is wrong with a page full of hostile names: markup made of them, dialogs, requests to others, errors."""
    visitor, found = Visitor(browser), []
    page, texts = visitor.page, [name.replace("\n", "↵") for name in HOSTILE]
    page.set_viewport_size({"width": width, "height": 800})
    visitor.open(address, *(("c", name) for name in HOSTILE), ("k", 5))
    if not {*answers(page)} & {*texts}:  # they keep to one another
        found.append("answers are not shown as text")
    for row in page.locator(".answer").all():
        row.click()
        expect(row).to_have_attribute("aria-expanded", "true")
    page.get_by_text("The picture in numbers").click()
    page.locator("#name").fill("Lo")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(1)
    if page.locator(".chip .body").all_text_contents() != texts:
        found.append("names are not shown as text")
    if images := page.locator("main img").count():
        found.append(f"{images} images made of names")
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
        found.append(f"{wide} pixels on a screen of {width}")
    # A name that turns the writing direction stays within itself.
    expect(page.locator(".chip bdi")).to_have_count(len(HOSTILE))
    keep(page, f"hostile-{width}")
    visitor.context.close()
    return found + visitor.wrong


@pytest.mark.parametrize("width", [1200, 320])
def test_hostile_names_are_text(browser, address, width, check):
    assert faults(browser, address, width) == []
    check(20, f"{width} px: hostile names are text, 0 requests to others, 0 errors, nothing to scroll sideways")


OURS = '<script type="module" src="main.js"></script>'


@pytest.mark.parametrize(
    ("what", "file", "before", "after", "noticed"),
    [
        (
            "a page that writes names as HTML",
            "dom.js",
            """el("bdi", { class: "name", title: name.length > 40 ? shown(name) : null, ...props }, shown(name));""",
            """Object.assign(el("bdi", { class: "name", ...props }), { innerHTML: shown(name) });""",
            "images made of names",
        ),
        (
            "a page with a script of others",
            "index.html",
            OURS,
            f"""{OURS}<script src="https://cdn.example/all.js"></script>""",
            "cdn.example",
        ),
        (
            "a page of 600 pixels",
            "style.css",
            "body {\n",
            "body {\n  min-width: 600px;\n",
            "600 pixels on a screen of 320",
        ),
    ],
)
def test_a_page_with_faults_is_noticed(browser, model, spoil, check, what, file, before, after, noticed):
    spoil(file, before, after)
    with serving(model) as address:
        found = [fault for fault in faults(browser, address, 320) if noticed in fault]
    assert found
    check.twin(20, what, found[0][:100])


def widths(visitor: Visitor, address: str, width: int) -> list[int]:
    """What the three tabs need on a screen of so many pixels."""
    page, found = visitor.page, []
    page.set_viewport_size({"width": width, "height": 640})
    visitor.open(address, ("c", ONE), ("m", ""), ("c", TWO), ("m", ""), ("beam", 2), ("k", 5))
    answers(page)
    page.locator(".answer").first.click()
    for tab in ("Ask", "Report", "API"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tabpanel", name=tab).locator("h2").first).to_be_visible()
        found.append(page.evaluate("document.documentElement.scrollWidth"))
        keep(page, f"phone-{tab.lower()}")
    return found


def test_a_phone_does_not_scroll_sideways(visitor, address, check):
    found = widths(visitor, address, 320)
    assert max(found) <= 320
    check(20, f"the three tabs take {max(found)} px of 320")


def grave(page: Page, only: tuple[str, ...] = ()) -> list[str]:
    """What axe finds that is serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(only)} if only else {})
    found = axe.run(page, options=options).response["violations"]
    return [f"{one['id']} {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible_in_light_and_dark(browser, address, scheme, check):
    visitor = Visitor(browser, color_scheme=scheme, reduced_motion="reduce")
    only = ("color-contrast",) if scheme == "dark" else ()  # the rest does not depend on colours
    found: dict[str, list[str]] = {}

    def look(state: str) -> None:
        keep(visitor.page, f"{scheme}-{state}")
        found[state] = grave(visitor.page, only)

    page = visitor.open(address, ("k", 5))
    expect(page.get_by_text("Try", exact=True)).to_be_visible()
    look("empty")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(light) > 3 * 128) == (scheme == "light")
    page.locator("#name").fill("ring")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(8)
    page.keyboard.press("ArrowDown")
    look("suggestions")
    page.keyboard.press("Enter")
    answers(page)
    page.locator(".answer").first.click()
    page.get_by_text("The picture in numbers").click()
    look("answers")
    page.get_by_label("one round of").check()
    page.get_by_label("buckets a hash in one round").fill("1")
    page.keyboard.press("Enter")
    expect(page.locator(".badge.doubt")).to_be_visible()
    look("doubt")
    assert page.locator("#columns").evaluate("one => getComputedStyle(one).transitionDuration") == "0s"
    for tab in ("Report", "API"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tabpanel", name=tab).locator("h2")).to_be_visible()
        for part in page.locator("details:visible > summary").all()[:3]:
            part.click()
        look(tab.lower())
    visitor.close()
    assert not any(found.values()), found
    check(20, f"axe, {scheme}: 0 serious or critical in {len(found)} states of the page")


@pytest.mark.parametrize(
    ("what", "file", "before", "after", "noticed"),
    [
        ("a page that does not tell its language", "index.html", '<html lang="en">', "<html>", "html-has-lang"),
        (
            "grey on white",
            "style.css",
            "  color: var(--ink);\n  font: 16px",
            "  color: #ccc;\n  font: 16px",
            "color-contrast",
        ),
    ],
)
def test_a_page_that_is_not_accessible_is_noticed(visitor, model, spoil, check, what, file, before, after, noticed):
    spoil(file, before, after)
    with serving(model) as address:
        page = visitor.open(address, ("k", 5))
        expect(page.get_by_text("Try", exact=True)).to_be_visible()
        found = grave(page)
    assert any(one.startswith(noticed) for one in found), found
    check.twin(20, what, f"axe: {found[0].split()[0]}")


def test_a_text_is_filled_in(visitor, text_model):
    visitor.expected = ("422",)
    with serving(text_model) as address:
        page = visitor.open(address, ("k", 3))
        area = page.get_by_label("Text with [MASK]")
        area.fill("Miles Davis is a  musician.")
        expect(page.get_by_role("alert")).to_contain_text("[MASK]")  # what is missing is told
        area.evaluate("one => one.setSelectionRange(17, 17)")
        page.get_by_role("button", name="Place [MASK]").click()
        expect(area).to_have_value("Miles Davis is a [MASK] musician.")
        assert len(answers(page)) == 3
        expect(page.locator(".entries li")).to_have_text(["miles davis", "is", "a", "[MASK]", "musician", "."])
        area.fill("[MASK] plays [MASK].")
        expect(page.locator(".answers section")).to_have_count(2)
        expect(page.get_by_label("Of mask")).to_be_visible()
        assert "t=%5BMASK%5D+plays+%5BMASK%5D." in page.url
        keep(page, "text")


def test_a_key_is_asked_for_and_kept_in_the_tab(visitor, model):
    visitor.expected = ("401",)
    with serving(model, Settings(api_key="open sesame".replace(" ", "-"))) as address:
        page = visitor.open(address, ("c", ONE), ("k", 5))
        field = page.get_by_label("This server asks for a key")
        expect(field).to_be_focused()
        assert field.get_attribute("type") == "password"
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("did not take that key")
        keep(page, "key")
        field.fill("open-sesame")
        page.keyboard.press("Enter")
        assert len(answers(page)) == 5
        expect(field).to_be_hidden()
        page.reload()
        assert len(answers(page)) == 5
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("tab", name="API").click()
        expect(page.locator(".curl")).to_contain_text("Bearer $SUPERBLOOM_KEY")
        expect(page.locator(".operation").first).to_be_visible()


def test_a_busy_server_is_asked_again(visitor, address):
    visitor.expected = ("503",)
    page, refused = visitor.page, []

    def busy(route: Route) -> None:
        if len(refused) == 1:
            return route.continue_()
        refused.append(route)
        return route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "too much to do"})

    page.route("**/v1/predict", busy)
    visitor.open(address, ("c", ONE), ("k", 5))
    expect(page.locator("#notice")).to_have_text("too much to do (asking again in 1 s)")
    assert len(answers(page)) == 5
    expect(page.locator("#notice")).to_be_hidden()


def test_a_server_that_is_gone_is_one_line(visitor, address):
    visitor.expected = ("ERR_FAILED",)
    page = visitor.open(address, ("c", ONE), ("k", 5))
    answers(page)
    page.route("**/v1/**", lambda route: route.abort())
    page.get_by_label("leave out names of the context").check()
    expect(page.locator("#notice")).to_contain_text("The server does not answer")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#notice")).to_be_hidden()
    assert ONE not in answers(page)


def contents(folder: Path) -> tuple[float, list[str]]:
    """Kilobytes of the page, and what in its files should not be there."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    text = "".join(path.read_text() for path in files)
    found = {*re.findall(r"https?://[^\s\"'`]+", text)} - {"http://www.w3.org/2000/svg"}
    found |= {*re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)}
    found |= {*re.findall(r"\sstyle=|\son\w+=|javascript:", (folder / "index.html").read_text())}
    return sum(path.stat().st_size for path in files) / 1024, sorted(found)


def test_the_page_is_small_and_asks_nobody_else(spoil, check):
    kilobytes, found = contents(PAGE)
    assert kilobytes <= 150
    assert found == []
    check(20, f"{kilobytes:.0f} KB in all, no address of others, nothing that parses names")
    large = f"{OURS}<script src='https://cdn.example/x.js'></script><p style=''>{'x' * 100_000}</p>"
    kilobytes, found = contents(spoil("index.html", OURS, large))
    assert kilobytes > 150
    assert found == [" style=", "https://cdn.example/x.js"]
    check.twin(20, "100 KB more, and a script of others", f"{kilobytes:.0f} KB, {found[1]}")
