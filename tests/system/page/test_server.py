"""The page of a model of text, of a server with a key, of a busy server and of one that is gone."""

import pytest
from playwright.sync_api import Route, expect

from superbloom.config.serving import Settings
from tests.support.page import CHROMIUM, ONE, answers, keep, serving

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]


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
    page = visitor.open(address, ("c", ONE), ("k", 5), ("skip", 0))
    answers(page)
    page.route("**/v1/**", lambda route: route.abort())
    page.get_by_label("leave out names of the context").check()
    expect(page.locator("#notice")).to_contain_text("The server does not answer")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#notice")).to_be_hidden()
    assert ONE not in answers(page)
