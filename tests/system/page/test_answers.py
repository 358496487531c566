"""Answers, why each was given, the certificate, the report, and a link that holds all of it."""

import json
import re
import shlex
import urllib.request

import pytest
from playwright.sync_api import Route, expect

from superbloom import Superbloom
from tests.support.page import (
    CHROMIUM,
    LINES,
    ONE,
    SMALL,
    TAG,
    TWO,
    Visitor,
    answers,
    asked,
    has_chips,
    keep,
    minus,
    serving,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]


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
