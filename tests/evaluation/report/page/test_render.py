"""The pages hold what the JSON holds, and nothing that is not in it."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.evaluation.options import Goals
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.report.report import Report
from qtool.evaluation.report.verdict import make_verdict
from tests.evaluation.report.page.made_up import HOSTILE, drawn_pages, made_up

VOID = {"meta", "link", "input", "br", "img"}
ADDRESSES = {"src", "href", "action", "xlink:href"}


class Page(HTMLParser):
    """The tables of a page, its embedded JSON, and every address in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.data = ""
        self.open: list[str] = []
        self._table = self._script = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.addresses += [v for k, v in given.items() if k in ADDRESSES]
        self.ids += [given["id"]] if "id" in given else []
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = given["id"]
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append(["", given.get("data-v")])
        elif tag == "script":
            self._script = given.get("id", "")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script" and self._script == "data":
            self.data += data
        elif self._table and {"td", "th"} & set(self.open):
            self.tables[self._table][-1][-1][0] += data


@pytest.fixture(scope="module", params=[2, 4], ids=["report", "compare"])
def report(request):
    return made_up(models=request.param)


@pytest.fixture(scope="module")
def made(report):
    return {name: data.decode() for name, data in drawn_pages(report).items()}


@pytest.fixture(scope="module")
def page(made):
    return Page(made["report.html"])


def column(page, table, index):
    return [row[index] for row in page.tables[table][1:]]


def numbers(cells):
    return [None if v in (None, "") else float(v) for _, v in cells]


def test_json_is_whole(report, made, page):
    found = json.loads(made["report.json"])
    assert json.loads(page.data) == found, "the page embeds the file"
    assert Report.from_json(found) == report
    assert found["schema"] == 1


def test_layers_carry_the_numbers_of_the_json(made, page):
    layers = json.loads(made["report.json"])["layers"]["layers"]
    layers.sort(key=lambda e: -e["only_share"])
    assert [text for text, _ in column(page, "t-layers", 0)] == [e["name"] for e in layers]
    fields = ["alone_db", "accumulated_db", "only_db", "only_share", "gain_db"]
    for index, name in [*enumerate(fields, 2), (8, "macs")]:
        assert numbers(column(page, "t-layers", index)) == [e[name] for e in layers], name


def test_tables_carry_the_numbers_of_the_json(made, page):
    found = json.loads(made["report.json"])
    nodes, metrics = found["profile"]["nodes"], found["accuracy"]["metrics"]
    medians = [m["median"] for t in found["latency"] for m in t["models"]]
    assert numbers(column(page, "t-latency", 3)) == medians
    assert numbers(column(page, "t-metrics", 2)) == [v for m in metrics for v in m["values"]]
    for i in range(len(nodes[0]["microseconds"])):
        assert numbers(column(page, "t-nodes", 1 + i)) == [n["microseconds"][i] for n in nodes]


def test_rows_fit_their_heads(page):
    for name, rows in page.tables.items():
        assert {len(row) for row in rows} == {len(rows[0])}, name


def test_page_is_whole_and_alone(page, made):
    assert page.open == [], "an element is not closed"
    assert all(a.startswith(("#", "data:")) for a in page.addresses), page.addresses
    assert len(set(page.ids)) == len(page.ids), "an id is used twice"
    assert "var(--s1)" in made["report.html"]
    assert "#01021" not in made["report.html"], "a stand-in colour was left"


def test_names_cannot_break_the_page(page, made):
    assert HOSTILE in [text for text, _ in column(page, "t-layers", 0)]
    assert "</script><b>" not in made["report.html"]
    for line in made["report.md"].splitlines():
        if line.startswith("|") and "</script>" in line:
            assert "\\|x" in line


def test_times_of_nodes_that_do_not_sum_to_a_run_are_said():
    plain = made_up()
    assert plain.profile is not None
    doubt = "the nodes of int8 sum to 31.3 ms, and a run takes 5.24 ms"
    pages = [
        {name: data.decode() for name, data in render_pages(report).items()}
        for report in (plain, replace(plain, profile=replace(plain.profile, differs=doubt)))
    ]
    for name in ("report.html", "report.md"):
        assert "Off by more than a quarter" not in pages[0][name]
        assert f"or by the profile itself: {doubt}" in pages[1][name]
    times = [page["report.html"].partition("Time per node</h3>")[2] for page in pages]
    assert ["speed\u2011up" in text.partition("</thead>")[0] for text in times] == [True, False]


def test_verdict_comes_first(made, report):
    for name in ("report.html", "report.md"):
        body = made[name].split("</head>")[-1].split("# made up")[-1]
        assert body.index("Ship it") < body.index("top-1")


@pytest.mark.parametrize(
    ("drop", "headline"), [(0.001, "Ship it"), (0.009, "Needs review"), (0.05, "Do not ship")]
)
def test_verdict_follows_the_drop(drop, headline):
    made = render_pages(made_up(drop=drop))
    assert f"> {headline}" in made["report.html"].decode()
    assert f"## {headline}" in made["report.md"].decode()


def test_without_optional_parts():
    empty = dict.fromkeys(("latency", "edges", "float_operators", "rewrites", "notes", "plan"), ())
    bare = replace(made_up(), profile=None, layers=None, layers_note="no float model", **empty)
    found = render_pages(bare)
    assert "no float model" in found["report.html"].decode()
    assert "no float model" in found["report.md"].decode()
    Page(found["report.html"].decode())


def test_five_hundred_layers_stay_small():
    found = drawn_pages(made_up(500))
    assert sum(len(data) for data in found.values()) < 5 * 2**20


def test_markdown_has_no_tags_nor_control_sequences() -> None:
    hostile = "<img src=x onerror=alert(1)>\x1b[31m"
    report = made_up()
    accuracy = replace(report.accuracy, warnings=(hostile,))
    text = render_pages(replace(report, title=hostile, accuracy=accuracy))["report.md"].decode()
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;img src=x" in text


@pytest.mark.parametrize(("slow", "shown"), [(0, "0.97x"), (1, "0.97x"), (None, "2.50x")])
def test_the_speed_is_that_of_its_mark(slow: int | None, shown: str) -> None:
    report = made_up()
    latency = list(report.latency)
    if slow is not None:
        ratios = (latency[slow].ratios[0], Ratio(0.97, 0.96, 0.98, 0.9, 1.0))
        latency[slow] = replace(latency[slow], ratios=ratios)
    verdict = make_verdict(report.models, 1, report.accuracy, latency, Goals())
    models = (report.models[0], replace(report.models[1], verdict=verdict))
    page = render_pages(replace(report, models=models, latency=tuple(latency)))["report.html"]
    card = page.decode().partition("Speed-up</h3>")[2].partition("</div>")[0]
    assert shown in card
