"""Names are chosen with the keyboard, moved and removed; an unknown name comes with the closest (check 20)."""

import pytest
from playwright.sync_api import expect

from tests.support.page import CHROMIUM, ONE, SEVEN, TWO, Visitor, answers, focused, has_chips, keep, serving

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]


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


@pytest.mark.parametrize("is_fast", [False, True])
def test_enter_takes_the_first_suggestion(visitor, address, is_fast):
    visitor.expected = ("422",)
    page = visitor.open(address, ("c", SEVEN))
    page.locator("#name").press_sequentially("RING 3, NAME")
    options = page.get_by_role("listbox").get_by_role("option")
    if not is_fast:  # else Enter comes before the list
        expect(options).to_have_count(8)
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_have_count(2)
    first = page.locator(".chip .name").nth(1).text_content()
    assert first.startswith("ring 3 name ")
    expect(page.get_by_role("alert")).to_be_empty()
    page.locator("#name").press_sequentially(TWO.upper().replace(" ", "-"))
    page.keyboard.press("Enter")  # one name, written in another way: it wins over every suggestion
    has_chips(page, SEVEN, first, TWO)


def test_enter_takes_no_suggestion_after_escape(visitor, address):
    visitor.expected = ("422",)
    page = visitor.open(address, ("c", SEVEN))
    page.locator("#name").press_sequentially("ring 3 n")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(8)
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    refused = page.get_by_role("alert").locator("p")
    expect(refused).to_contain_text("'ring 3 n' is not among the 196 names; did you mean ")
    has_chips(page, SEVEN)


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
