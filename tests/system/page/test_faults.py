"""What the page must never do: run names as code, ask others, scroll sideways, exclude readers (check 20)."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from superbloom.serve.app import PAGE
from tests.support.page import CHROMIUM, HOSTILE, ONE, TWO, Visitor, answers, keep, serving

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]


def faults(browser: Browser, address: str, width: int) -> list[str]:
    """What is wrong with a page full of hostile names: markup made of them, dialogs, requests to others, errors."""
    visitor, found = Visitor(browser), []
    page, texts = visitor.page, [name.replace("\n", "↵") for name in HOSTILE]
    page.set_viewport_size({"width": width, "height": 800})
    visitor.open(address, *(("c", name) for name in HOSTILE), ("k", 5), ("skip", 0))
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
    for opener in page.locator(".similar summary").all():
        opener.click()
    expect(page.locator(".similar ol")).to_have_count(2)
    look("answers")
    page.get_by_role("combobox", name="Answers").select_option("50")  # more than the memory brings
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
