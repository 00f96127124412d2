"""The page in a real browser: no error, no request, sorting, filter and layer view work."""

import json

import pytest

from tests.evaluation.report.page.browser import axe_violations, browser, opened
from tests.evaluation.report.page.made_up import HOSTILE, drawn_pages, made_up

pytestmark = pytest.mark.matrix  # .ci/run installs Chromium for it


@pytest.fixture(scope="module")
def report():
    return made_up(500)


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(drawn_pages(report)["report.html"])
    return path


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def desk(chromium, file):
    with opened(chromium, file) as found:
        yield found


def test_opens_alone_and_without_an_error(desk, file):
    assert desk.said == []
    assert desk.asked == [file.resolve().as_uri()]
    assert desk.evaluate("document.querySelectorAll('#t-layers tbody tr').length") == 500


def test_verdict_is_on_the_first_screen(desk):
    for selector in (".verdict h2", ".verdict .cards"):
        box = desk.page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= 900, selector


def test_sorts_by_numbers_both_ways(desk, report):
    button = desk.page.locator("#t-layers thead th:nth-child(3) button")
    shown = "[...document.querySelectorAll('#t-layers tbody tr')].map(r => r.cells[2].dataset.v)"
    known = sorted(e.alone_db for e in report.layers.layers if e.alone_db is not None)
    button.click()
    assert [float(v) for v in desk.evaluate(shown)[:-1]] == known
    assert desk.evaluate(shown)[-1] == "", "what has no number comes last"
    button.click()
    assert [float(v) for v in desk.evaluate(shown)[:-1]] == known[::-1]
    assert desk.evaluate(shown)[-1] == ""
    assert desk.said == []


def test_sorts_by_names_as_people_do(desk):
    desk.page.locator("#t-layers thead th:nth-child(1) button").click()
    names = [t for t in desk.texts("#t-layers tbody th") if t.startswith("stage")]
    assert names.index("stage2.block0.conv") < names.index("stage10.block0.conv")


def test_filter(desk):
    desk.page.locator("input[data-table=t-layers]").fill("stage3.")
    visible = desk.texts("#t-layers tbody tr:not([hidden]) th")
    assert len(visible) == 10
    assert all("stage3." in name for name in visible)
    assert desk.texts("[data-count=t-layers]") == ["10 of 500"]


def test_layer_view_draws_the_numbers_of_the_json(desk, report):
    worst = max(report.layers.layers, key=lambda e: e.only_share)
    desk.page.locator("#t-layers button.open").first.click()
    assert desk.texts("#t-layers button[aria-expanded=true]") == [worst.name]
    drawn = desk.page.locator(".view figure").count()
    assert drawn == 2
    filled = sum(count > 0 for count in worst.activation.counts)
    rects = desk.page.locator(".view figure").first.locator("rect.count, rect.lost").count()
    assert rects == filled
    assert "1.0 %" in desk.texts(".view figcaption")[0]
    desk.page.locator("#t-layers button.open").first.click()
    assert desk.page.locator(".view").count() == 0
    assert desk.said == []


def test_hostile_name_is_text(desk):
    assert HOSTILE in desk.texts("#t-layers tbody th")
    desk.page.locator("#t-layers button.open", has_text="</script>").click()
    assert desk.page.locator(".view figure").count() == 2
    assert desk.said == []


def test_embedded_numbers_are_those_of_the_file(desk, report):
    data = desk.evaluate("document.getElementById('data').textContent")
    assert json.loads(data) == report.to_json()


def test_a_box_of_the_graph_leads_to_its_row(chromium, tmp_path):
    small = tmp_path / "small.html"
    small.write_bytes(drawn_pages(made_up(12))["report.html"])
    with opened(chromium, small) as found:
        assert found.page.locator("#network svg.network a").count() == 12
        found.page.locator("#network svg.network a").nth(5).click()
        assert found.evaluate("location.hash") == "#layer-5"
        found.wait_for_count("#layer-5 + .view figure", 2)  # its histograms
        found.page.locator("#layers svg.figure a").first.click()
        found.wait_for_count(".view", 2)
        assert found.said == []


def test_a_box_of_a_module_opens_its_graph(desk):
    """The page shows modules above 200 nodes, here the 50 stages, and each can be opened."""
    assert desk.page.locator("#network > figure svg.network .module").count() == 50
    assert desk.page.locator("details.module[open]").count() == 0
    desk.page.locator("#network > figure svg.network a", has_text="stage7").click()
    desk.wait_for_count("details.module[open]", 1)
    desk.wait_for_count("details.module[open] svg.network a", 10)


NARROW = 390
CUT = """() => [...document.querySelectorAll('.scroll')]
    .filter((e) => e.scrollWidth > e.clientWidth + 1)
    .map((e) => [e.getAttribute('aria-label'), !e.previousElementSibling?.hidden])"""


@pytest.mark.parametrize("models", [2, 4])
def test_nothing_is_cut_on_a_desk(chromium, tmp_path, models):
    page = tmp_path / "page.html"
    page.write_bytes(drawn_pages(made_up(40, models))["report.html"])
    with opened(chromium, page) as found:
        found.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert found.evaluate(CUT) == []
        assert found.page.locator(".hint:visible").count() == 0


def test_names_stay_visible_and_whole_on_a_phone(chromium, file):
    with opened(chromium, file, NARROW, 844) as phone:
        cut = [label for label, hinted in phone.evaluate(CUT) if label == "Layers" and hinted]
        assert cut == ["Layers"], "a table that goes on is announced"
        phone.evaluate("document.querySelector('#t-layers').parentElement.scrollLeft = 500")
        boxes = phone.evaluate(
            "[...document.querySelectorAll('#t-layers tbody th .name')].slice(0, 20)"
            ".map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.right, r.height])"
        )
        assert all(0 <= left < right <= 0.55 * NARROW for left, right, _ in boxes)
        assert len({height for *_, height in boxes}) == 1, "a name takes one line"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("models", [2, 4])
def test_axe_finds_nothing(chromium, tmp_path, models, scheme):
    """The accessibility checks of axe-core, where it is installed."""
    page = tmp_path / "page.html"
    page.write_bytes(drawn_pages(made_up(12, models))["report.html"])
    with opened(chromium, page, scheme=scheme, scripts=True) as found:
        found.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert axe_violations(found) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(chromium, file, scheme):
    """Nothing sticks out sideways, and the verdict is on the first screen, readable."""
    with opened(chromium, file, 390, 844, scheme) as phone:
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        box = phone.page.locator(".verdict .card").nth(1).bounding_box()
        assert box["y"] + box["height"] <= 844
        assert phone.evaluate(
            "parseFloat(getComputedStyle(document.querySelector('#speed > p')).fontSize)"
        ) >= 14  # fmt: skip
        paper = phone.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(paper.replace("rgb(", "[").replace(")", "]"))) > 380) == (
            scheme == "light"
        )
        assert phone.said == []


def test_prints_without_tools(desk):
    desk.page.emulate_media(media="print")
    assert not desk.page.locator(".tools").first.is_visible()
    assert desk.page.locator("#t-layers").is_visible()
