"""Answers, why each was given, the certificate, the report, and a link that holds all of it."""

import json
import math
import re
import shlex
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Route, expect

from superbloom import Superbloom
from tests.support.page import (
    CHROMIUM,
    FAST,
    LINES,
    ONE,
    SMALL,
    TAG,
    TWO,
    Visitor,
    answers,
    asked,
    focused,
    has_chips,
    keep,
    percent,
    serving,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; the page is tested in one"),
]


MEANING = {
    True: "Certified: no other allowed name has a higher probability under this model.",
    False: "Not certified: another name may have a higher probability under this model.",
}
PERCENT = r"[\d.]+(?:·10[⁻⁰¹²³⁴-⁹]+)? %"
ADDS = "adds to the probability"


def test_answers_follow_the_context(visitor, address, model):
    page = visitor.open(address, ("c", ONE), ("k", 5))
    assert answers(page) == [answer.name for answer in model.predict([ONE], k=5)]
    added = page.locator(".answer .name").last.text_content()
    page.get_by_role("button", name=re.compile("^Add .*to the context")).last.press("Enter")
    expect(page.locator(".chip")).to_have_count(2)
    expected = model.predict([ONE, added], k=5)
    expect(page.locator(".answer .name")).to_have_text([answer.name for answer in expected])
    assert page.evaluate("document.activeElement.classList.contains('plus')")  # the focus stays in the list
    expect(page.locator(".answer .chance").first).to_have_text(re.compile(r"^<?[\d.]+ %$"))
    page.get_by_role("combobox", name="Answers").select_option("10")
    expect(page.locator(".answer")).to_have_count(10)
    box = page.get_by_label("leave out names of the context")
    for is_left_out in (False, True):  # rows of this model never repeat a name, so it leaves them out by default
        expect(box).to_be_checked(checked=not is_left_out)
        box.set_checked(is_left_out)
        answered = model.predict([ONE, added], k=10, exclude_context=is_left_out)
        expect(page.locator(".answer .name")).to_have_text([answer.name for answer in answered])
        assert f"skip={is_left_out:d}" in page.url
    expect(page.locator(".dot-out")).not_to_have_count(0)
    expect(page.locator("#live")).to_contain_text("10 answers: ")
    expect(page.locator("#live")).to_contain_text(MEANING[True])


@pytest.mark.parametrize("query", [{}, {"beam": 1, "exact": False}])
def test_an_answer_has_one_probability_and_a_bar_of_its_length(visitor, address, query):
    page = visitor.open(address, ("c", ONE), ("k", 5), *([("beam", 1)] if query else []))
    answers(page)
    (mask,) = asked(address, "v1/predict", {"context": [ONE], "k": 5} | query)["masks"]
    probabilities = [prediction["probability"] for prediction in mask["predictions"]]
    shown = page.locator(".answer .chance").all_text_contents()
    assert [percent(text) for text in shown] == pytest.approx(probabilities, rel=0.05, abs=1e-5)
    widths = page.locator(".answer .bar span").evaluate_all("all => all.map(one => parseFloat(one.style.width))")
    assert widths == pytest.approx([100 * p / probabilities[0] for p in probabilities], abs=0.1)


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


def test_the_parts_of_an_answer_make_its_probability(visitor, address):
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("k", 5))
    answers(page)
    row = page.locator(".answer").nth(1)
    row.press("Enter")
    expect(row).to_have_attribute("aria-expanded", "true")
    (mask,) = asked(address, "v1/predict", {"context": [ONE, TWO], "k": 5, "explain": True})["masks"]
    why, answer = mask["why"][1], mask["predictions"][1]
    panel = page.locator(f"#{row.get_attribute('aria-controls')}")
    *rows, mean, network = (one.locator("td").all_text_contents() for one in panel.locator(".parts tbody tr").all())
    products = []
    for (bucket, share, product), token in zip(rows, why["tokens"], strict=True):
        assert percent(bucket) == pytest.approx(math.exp(token["log_prob"]), rel=0.01)
        assert percent(share) == pytest.approx(token["share"], rel=0.01)
        products.append(percent(product))
        assert products[-1] == pytest.approx(percent(bucket) * percent(share), rel=0.02)
        expect(panel.locator(".parts")).to_contain_text(f"bucket {token['bucket']}, number {token['rank']} of ")
    assert mean[:2] == network[:2] == ["", ""]
    assert percent(mean[2]) == pytest.approx(sum(products) / len(products), rel=0.02)
    assert percent(network[2]) == pytest.approx(why["parts"]["network"], rel=0.01)
    weight = percent(re.search(rf"× ({PERCENT}), its weight", panel.locator(".parts").text_content())[1])
    assert weight * percent(mean[2]) == pytest.approx(percent(network[2]), rel=0.02)

    added = sorted((value for value in why["parts"].values() if value > 0), reverse=True)
    assert len(added) > 2
    shares = [percent(text) for text in panel.locator(".contributions .number").all_text_contents()]
    assert shares == pytest.approx([value / answer["probability"] for value in added], rel=0.05, abs=1e-5)
    assert sum(shares) == pytest.approx(1, abs=0.01)
    expect(panel.locator(".contributions .own")).to_have_text(re.compile("^the network"))
    beside = sorted(why["beside"], key=lambda pair: (-pair["rows"], pair["nearest"], -pair["share"]))
    assert [pair["name"] for pair in beside] in ([ONE, TWO], [TWO, ONE])
    assert panel.locator(".beside .name").all_text_contents() == [pair["name"] for pair in beside]
    shares = [percent(text) for text in panel.locator(".beside .number").all_text_contents()]
    assert shares == pytest.approx([pair["share"] for pair in beside], rel=0.05)
    said = panel.locator(".beside li").all_text_contents()
    assert [text.endswith("mostly follows it") for text in said] == [pair["follows"] >= 0.6 for pair in beside]
    for text, pair in zip(said, beside, strict=True):
        rows = f"{pair['rows']} row{'s' if pair['rows'] > 1 else ''}"
        assert text.startswith(f"beside {pair['name']} in {rows}, nearest distance {pair['nearest']}")
    assert panel.locator("h3").first.text_content() == "Beside names of the context in training rows"
    similar = panel.locator(".similar-rows > li")
    assert similar.locator("> .name").all_text_contents() == [row["key"] for row in why["similar_rows"]]
    assert len(why["similar_rows"]) > 1
    numbers = [float(text) for text in similar.locator(".number").all_text_contents()]
    assert numbers == pytest.approx([row["similarity"] for row in why["similar_rows"]], abs=0.006)
    shared = [row.locator(".small .name").all_text_contents() for row in similar.all()]
    assert shared == [row["shared"] for row in why["similar_rows"]]
    expect(panel).to_contain_text("how frequent a name is among its bucket mates")
    expect(panel).to_contain_text(f"{why['prior']:+.2f} for this name".replace("-", "−"))

    for bucket, token in zip(panel.locator(".buckets > li").all(), why["tokens"], strict=True):
        members = [(answer["name"], token["share"]), *zip(token["mates"], token["mate_shares"], strict=True)]
        members.sort(key=lambda member: -member[1])
        assert bucket.locator(".name").all_text_contents() == [name for name, _ in members]
        assert bucket.locator(".own .name").all_text_contents() == [answer["name"]]
        shares = [percent(text) for text in bucket.locator(".number").all_text_contents()]
        assert shares[: len(members)] == pytest.approx([share for _, share in members], rel=0.06)
        widths = bucket.locator(".bar span").evaluate_all("all => all.map(one => parseFloat(one.style.width))")
        assert sum(widths) == pytest.approx(100, abs=0.1)  # with those that are not named

    assert panel.locator(".needs .name").all_text_contents() == [ONE, TWO]
    shown = [
        math.log(float(text[1:].replace(",", ""))) * (1 if text[0] == "×" else -1)
        for text in panel.locator(".needs .number").all_text_contents()
    ]
    assert shown == pytest.approx([one["difference"] for one in why["depends_on"]], abs=0.05)
    sides = panel.locator(".needs .diverging span").evaluate_all("all => all.map(one => one.className)")
    assert sides == ["adds" if value >= 0 else "takes" for value in shown]
    keep(page, "why")
    row.press("Enter")
    expect(panel).to_be_hidden()


@pytest.fixture(scope="module")
def forgetful(corpus) -> Iterator[str]:
    """The address of a model that remembers nothing."""
    with serving(Superbloom(alpha=4, **SMALL).fit(corpus, steps=150, remember="none", **FAST)) as url:
        yield url


@pytest.mark.parametrize("beam", [1, 12])
def test_the_certificate_is_drawn(visitor, forgetful, beam):
    address = forgetful
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("k", 5), ("beam", beam))
    answers(page)
    query = {"context": [ONE, TWO], "k": 5, "beam": beam, "exact": False, "explain": True}
    (mask,) = asked(address, "v1/predict", query)["masks"]
    proof = mask["certificate"]
    assert mask["certified"] == (beam == 12) == (proof["kth"] > proof["bound"])

    expect(page.locator(".badge")).to_have_text("certified" if mask["certified"] else "not certified")
    sentence = page.locator(".proof").text_content()
    bound, kth = (percent(text) for text in re.findall(PERCENT, sentence))
    assert (bound, kth) == pytest.approx((proof["bound"], proof["kth"]), rel=0.01)
    assert ("none is missing" in sentence) == mask["certified"]
    expect(page.locator(".meaning")).to_have_text(MEANING[mask["certified"]])
    expect(page.locator(".certificate")).to_contain_text("nothing about whether the answers are right in the world")
    for kind, count in [
        ("answer", sum(point["answer"] for point in proof["points"])),
        ("unseen", sum(not point["opened"] for point in proof["points"])),
    ]:
        expect(page.locator(f".dot-{kind}")).to_have_count(count)
    # Certified exactly when the corner lies below the line, also in pixels, which grow downwards.
    line = re.findall(r"([\d.]+),([\d.]+)", page.locator("path.level").get_attribute("d"))
    cx, cy = page.locator(".corner rect").evaluate("one => ['x', 'y'].map(a => +one.getAttribute(a) + 5)")
    assert len(line) > 50
    assert mask["certified"] == (not any(float(x) < cx and float(y) > cy for x, y in line))
    expect(page.locator(".open-question")).to_have_count(0 if mask["certified"] else 1)

    walk = page.get_by_label("Walk through the points, best first")
    walk.press("ArrowRight")
    best = sorted(proof["points"], key=lambda point: -sum(point["values"]))[1]
    assert best["name"] in walk.get_attribute("aria-valuetext")
    *added, total = (percent(text) for text in re.findall(PERCENT, walk.get_attribute("aria-valuetext")))
    assert added == pytest.approx(best["values"], rel=0.01)
    assert total == pytest.approx(sum(best["values"]), rel=0.01)
    expect(page.locator(".certificate")).not_to_contain_text("memory")
    expect(page.locator(".plane .ring")).to_have_count(1)
    expect(page.locator(".said")).to_contain_text(best["name"])
    page.get_by_text("The picture in numbers").click()
    expect(page.locator(".certificate table")).to_contain_text(mask["predictions"][0]["name"])
    keep(page, "certified" if mask["certified"] else "not-certified")


def test_the_certificate_counts_what_the_memory_adds(visitor, address):
    page = visitor.open(address, ("c", ONE), ("c", TWO), ("k", 5), ("beam", 1))
    answers(page)
    query = {"context": [ONE, TWO], "k": 5, "beam": 1, "exact": False, "explain": True}
    (mask,) = asked(address, "v1/predict", query)["masks"]
    proof = mask["certificate"]
    assert mask["certified"]
    assert proof["kth"] > proof["bound"]
    sentence = page.locator(".proof").text_content()
    assert "an id in no opened bucket that the memory does not bring has at most" in sentence
    bound, kth = (percent(text) for text in re.findall(PERCENT, sentence))
    assert (bound, kth) == pytest.approx((proof["bound"], proof["kth"]), rel=0.01)
    expect(page.locator(".certificate")).to_contain_text("The memory adds the rest of a probability")
    unseen = sum(not (point["opened"] or point["excluded"] or point["memory"] > 0) for point in proof["points"])
    expect(page.locator(".dot-unseen")).to_have_count(unseen)
    walk = page.get_by_label("Walk through the points, best first")
    walk.press("ArrowRight")
    best = sorted(proof["points"], key=lambda point: -sum(point["values"]) - point["memory"])[1]
    assert best["memory"] > 0
    assert best["name"] in walk.get_attribute("aria-valuetext")
    *added, total = (percent(text) for text in re.findall(PERCENT, walk.get_attribute("aria-valuetext")))
    assert added == pytest.approx([*best["values"], best["memory"]], rel=0.01)
    assert total == pytest.approx(sum(best["values"]) + best["memory"], rel=0.01)
    page.get_by_text("The picture in numbers").click()
    expect(page.locator(".certificate thead th")).to_have_text(
        ["Answer", "Hash 1 adds", "Hash 2 adds", "Memory adds", "Probability"]
    )
    keep(page, "certified-with-memory")


def test_the_certificate_says_when_every_id_was_scored(visitor, address):
    page = visitor.open(address, ("c", ONE), ("k", 20))
    answers(page)
    expect(page.locator(".badge")).to_have_text("certified")
    expect(page.locator(".proof")).to_contain_text("All 196 ids were scored")
    page.get_by_role("button", name=re.compile("See what .* would prove")).click()
    expect(page.locator("#panel-ask input[name=way][value=beam]")).to_be_checked()


@pytest.mark.parametrize("hashes", [1, 3])
def test_the_certificate_of_other_numbers_of_hashes(visitor, corpus, hashes):
    options = SMALL | {"num_hashes": hashes, "alpha": 1 if hashes == 1 else 4}
    with serving(Superbloom(**options).fit(corpus, steps=2, quiet=True, remember="none")) as address:
        page = visitor.open(address, ("c", ONE), ("k", 3), ("beam", 4))
        answers(page)
        expect(page.locator(".plane .dot-answer")).to_have_count(3)
        select = page.get_by_label("Hashes")
        if hashes == 1:
            expect(select).to_have_count(0)
            expect(page.locator(".plane .label")).to_have_text([f"what hash 1 {ADDS}"])
        else:
            select.select_option(label="2 and 3")
            expect(page.locator(".plane .label")).to_have_text([f"what hash 2 {ADDS}", f"what hash 3 {ADDS}"])
            expect(
                page.get_by_text(re.compile("The line is what an unopened id would need .* from hash 1"))
            ).to_be_visible()
        keep(page, f"{hashes}-hashes")


def test_a_model_that_ranks_by_the_sum_says_so(visitor, corpus):
    with serving(Superbloom(alpha=4, score="sum", **SMALL).fit(corpus, steps=2, quiet=True)) as address:
        page = visitor.open(address, ("c", ONE), ("k", 3))
        page.locator(".answer").nth(len(answers(page)) - 1).click()
        expect(page.locator(".meaning")).to_have_text(MEANING[True].replace("probability", "score"))
        expect(page.locator(".certificate")).to_contain_text("ranks by the sum of the log-probabilities")
        expect(page.locator(".plane")).to_have_count(0)
        expect(page.locator(".why .parts")).to_be_visible()


def test_without_a_memory_the_hashes_are_the_whole_probability(visitor, corpus):
    with serving(Superbloom(alpha=4, **SMALL).fit(corpus, steps=2, quiet=True, remember="none")) as address:
        page = visitor.open(address, ("c", ONE), ("k", 3), ("beam", 4))
        answers(page)
        page.locator(".answer").first.click()
        expect(page.locator(".why .parts .total th")).to_have_text(["Mean: the probability"])
        expect(page.locator(".contributions, .beside")).to_have_count(0)
        expect(page.locator(".certificate")).not_to_contain_text("memory")
        page.get_by_text("Names similar to the context").click()
        expect(page.locator(".similar").first).to_contain_text(
            "This model remembers no pairs; these are the model's answers"
        )


def test_similar_names_are_found_and_added_from_the_keyboard(visitor, address, model):
    page = visitor.open(address, ("c", ONE), ("k", 5))
    answers(page)
    opener = page.get_by_text("Names similar to the context")
    opener.focus()
    page.keyboard.press("Enter")
    context = page.locator("#query .similar")
    expected = [one.name for one in model.similar([ONE], k=10).neighbours]
    expect(context.locator(".name")).to_have_text(expected)
    expect(page.locator("#live")).to_have_text(re.compile(r"^\d+ similar names\.$"))
    expect(context).to_contain_text("Names that stood near in training rows")
    page.keyboard.press("Tab")
    assert focused(page) == expected[0]
    page.keyboard.press("Enter")
    has_chips(page, ONE, expected[0])
    assert focused(page) == "name"
    together = [one.name for one in model.similar([ONE, expected[0]], k=10).neighbours]
    expect(context.locator(".name")).to_have_text(together)  # it stays open

    answers(page)
    page.locator(".answer").first.click()
    name = page.locator(".answer .name").first.text_content()
    panel = page.locator(".why .similar")
    expect(panel.locator("summary")).to_have_text(f"Names similar to {name}")
    panel.locator("summary").click()
    near = [one.name for one in model.similar([name], k=10).neighbours]
    expect(panel.locator("li .name")).to_have_text(near)
    keep(page, "similar")
    panel.get_by_role("button", name=f"Add \u2068{near[-1]}\u2069 to the context").click()
    has_chips(page, ONE, expected[0], near[-1])


def test_a_failed_search_for_similar_names_is_told_in_its_place(visitor, address):
    visitor.expected = ("422",)
    page = visitor.open(address, ("c", ONE), ("k", 5))
    answers(page)
    refused = {"status": 422, "json": {"error": "'x' is not among the 196 names"}}
    page.route("**/v1/similar", lambda route: route.fulfill(**refused))
    page.get_by_text("Names similar to the context").click()
    expect(page.locator("#query .similar .warn")).to_have_text("'x' is not among the 196 names")


def test_the_report(visitor, address, corpus):
    page = visitor.open(address)
    page.get_by_role("tab", name="Ask").focus()
    page.keyboard.press("ArrowRight")
    panel = page.get_by_role("tabpanel", name="Report")
    expect(panel.locator("table.recall tbody th")).to_have_text(["this model", "the paper's sum", "popularity"])
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
    assert body == {"context": [TAG, None, LINES], "k": 3, "exclude_context": True}
    assert len(asked(address, "v1/predict", body)["masks"][0]["predictions"]) == 3
    operations = page.locator(".operation")
    with urllib.request.urlopen(f"{address}openapi.json") as response:
        paths = json.load(response)["paths"]
    assert operations.count() == sum(len(path) for path in paths.values())
    operations.filter(has_text="/v1/predict").first.locator("summary").click()
    expect(operations.first).to_contain_text("min_score")
    expect(operations.first).to_contain_text("masks[].predictions[].probability")
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
