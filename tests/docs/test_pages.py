"""Pages, and the tables on them."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import tomllib
import torch
from qtool.cli import main
from torch import nn
from torch.nn import functional as F

import qtool
from docs.support_matrix import LEGEND, operator_table, treatment
from qtool import capture_model
from qtool.core.ops import OPS, rows
from qtool.evaluation.report.report import SCHEMA
from qtool.planning import targets
from qtool.planning.targets import TARGETS
from qtool.plugins.emulators.available import web_folder
from tests.docs.snippets import PAGES, ROOT, blocks, run_command
from tests.evaluation.report.page.made_up import made_up
from tests.needs import needs_web
from tests.passes.differential import Function

LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = _generate()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text("utf-8")
RESULTS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "benchmarks/results").glob("*.md"))


def _anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, "CHANGELOG.md", "reports/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for found in LINK.finditer(CODE.sub("", path.read_text("utf-8"))):
        link = found[1] or found[2]
        if not link.startswith(("http://", "https://", "mailto:")):
            file, _, anchor = link.partition("#")
            to = path.parent / file if file else path
            assert to.exists(), f"{page}: {link}"
            assert not anchor or anchor in _anchors(to), f"{page}: {link}"


SITE = ["CHANGELOG.md", "CONTRIBUTING.md", *(p for p in PAGES if p.startswith("docs/"))]
"""The pages of the site; those of the root are included in pages of docs/."""


@pytest.mark.parametrize("page", SITE)
def test_links_between_pages_stay_in_the_site(page: str) -> None:
    folder = (ROOT / "docs" / page.removeprefix("docs/")).parent
    for found in LINK.finditer(CODE.sub("", (ROOT / page).read_text("utf-8"))):
        file = (found[1] or found[2]).partition("#")[0]
        if file and not re.match(r"https?:|mailto:", file):  # other files than pages are copied
            to = (folder / file).resolve()
            assert to.is_file(), f"{page}: {file}"
            assert to.suffix != ".md" or to.is_relative_to(ROOT / "docs"), (
                f"{page}: the site does not have {file}; name its path as code"
            )


def test_every_page_is_in_the_index() -> None:
    (tree,) = re.findall(r"(```\{toctree\}.*)", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    pages = {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"}
    assert set(re.findall(r"^([\w-]+)$", tree, re.MULTILINE)) == pages


def test_the_reference_has_every_command_and_option() -> None:
    text = GENERATE.commands()
    context = click.Context(main)
    for name in main.list_commands(context):
        section = text.partition(f"## qtool {name}\n")[2].partition("\n## ")[0]
        options = [
            p
            for p in main.get_command(context, name).params
            if isinstance(p, click.Option) and p.name != "help_all"
        ]
        assert all(p.opts[-1] in section for p in options), name
        assert f"```sh\nqtool {name} " in section


def test_the_json_page_has_every_command_and_class() -> None:
    text = GENERATE.json_documents()
    assert all(f"\n## qtool {name}\n" in text for name in main.list_commands(click.Context(main)))
    links = set(re.findall(r"\]\(#(\w+)\)", text))
    assert links == {name.lower() for name in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert {"fidelity", "speedup", "timing"} <= links


def test_the_table_has_every_operator_and_target() -> None:
    text = GENERATE.operators()
    assert all(f"| `{op.key}` |" in text for op in rows())
    assert all(name in text for name in targets.TARGETS)


def test_the_layers_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (chain,) = (c for c in contracts if c.get("containers") == ["qtool"])
    layers = [re.findall(r"\w+", layer) for layer in chain["layers"]]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", ARCHITECTURE, re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == layers


@pytest.mark.parametrize("heading", ["What a new reader asks", "Where is ...?"])
def test_what_the_architecture_names_exists(heading: str) -> None:
    """A name stands behind the package, or the file, that defines it."""
    section = ARCHITECTURE.partition(f"## {heading}")[2].partition("\n## ")[0]
    answers = re.sub(r"^\| [^|]+ \|", "", section.split("\n\n", 2)[2], flags=re.MULTILINE)
    named = re.findall(r"`(.+?)`", answers)
    text = ""
    for name in named:
        if "/" in name:
            path = ROOT / ("" if name.startswith(("cli/", "tests/")) else "qtool") / name
            assert path.exists(), name
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            text = "\n".join(file.read_text("utf-8") for file in files)
        elif not name.startswith("-"):
            defined = rf"^ *(def|class) {name}\b|^( {{4}})?{name}\b.*( = |: )"
            assert re.search(defined, text, re.MULTILINE), name
    assert len(named) > 25


def test_every_decision_has_its_number_and_is_in_the_index() -> None:
    records = sorted(p.name for p in (ROOT / "docs/decisions").glob("0*.md"))
    numbers = [name[:3] for name in records]
    index = (ROOT / "docs/decisions/index.md").read_text("utf-8")
    (merged,) = re.findall(r"is part of that: (.*?)\.", index, re.DOTALL)
    parts = re.findall(r"\d{3}", re.sub(r"of \d{3}", "", merged))
    every = sorted([*numbers, *parts])
    assert every == [f"{i:03d}" for i in range(1, len(every) + 1)]
    assert sorted(re.findall(r"\((\d{3}-[\w-]+\.md)\)", index)) == records
    titles = [(ROOT / "docs/decisions" / name).read_text("utf-8")[:7] for name in records]
    assert titles == [f"# {number}. " for number in numbers]


def test_marks_stand_where_parts_are_put() -> None:
    for page in GENERATE.PAGES:
        assert (ROOT / "docs" / f"{page}.md").read_text("utf-8").count(GENERATE.MARK) == 1


def test_the_reference_of_python_has_every_public_name() -> None:
    text = (ROOT / "docs/api.md").read_text("utf-8")
    named = {
        n.rpartition(".")[2] for n in re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text, re.MULTILINE)
    }
    assert set(qtool.__all__) <= named


WEB = web_folder() / "node_modules" / "onnxruntime-web" / "dist" / "ort.node.min.mjs"


@needs_web
@pytest.mark.matrix
def test_the_program_of_a_browser_runs_in_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [b.text for b in blocks("docs/devices.md")]
    (program,) = (text for text in texts if "import * as ort" in text)
    assert '"onnxruntime-web"' in program
    (tmp_path / "program.mjs").write_text(program.replace("onnxruntime-web", str(WEB)))
    for name in ("examples", "calib_data"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    (convert,) = (
        text
        for text in texts
        if text.startswith("qtool quantize") and "--target onnxruntime-web " in text
    )
    run_command(convert.replace("\\\n", " ").split())
    done = subprocess.run(
        ["node", "program.mjs"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, best = map(int, done.stdout.split())
    assert (count, 0 <= best < count) == (10, True)


FORMS = {"integer": "integer", "opportunistic": "integer", "moves": "pass", "weights": "weights"}
FORMS |= {"fused": "fused", "between": "float", "float": "float"}


def _rows() -> dict[str, list[str]]:
    lines = operator_table(TARGETS.values()).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert {len(c) for c in cells} == {2 + len(TARGETS)}
    assert cells[0][2:] == list(TARGETS)
    return {c[0].strip("`"): c[1:] for c in cells[2:]}


def test_there_is_one_row_for_each_operator() -> None:
    assert [*_rows()] == [*dict.fromkeys(op.key for op in OPS.values())]


def test_the_words_are_explained() -> None:
    assert {word for cells in _rows().values() for word in cells[1:]} <= LEGEND.keys()
    assert FORMS.keys() == LEGEND.keys()


def test_operators_are_called_as_in_torch() -> None:
    rows = _rows()
    assert rows["conv"][0] == "qtool::conv"
    assert rows["matmul"][0] == "aten::baddbmm, aten::bmm, aten::matmul, aten::mm"


def _body(
    x: torch.Tensor, first: nn.Module, conv: nn.Module, up: nn.Module, head: nn.Module
) -> torch.Tensor:
    y = F.relu(conv(F.max_pool2d(first(x), 2)))
    return head(up(y + y))


@cache
def _captured() -> qtool.Captured:
    convs = nn.Conv2d(48, 48, 1), nn.Conv2d(48, 4, 1)
    layers = (*convs, nn.ConvTranspose2d(4, 4, 2, 2), nn.Linear(8, 3))
    return capture_model(Function(_body, *layers).eval(), torch.randn(2, 48, 8, 8))


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_a_plan_does_what_the_table_says(target) -> None:
    """At best: a call may have to stay in float for a reason of its own."""
    plan = _captured().plan(target.name, recipe={"mode": "static"})
    by_key = {op.key: op for op in OPS.values()}
    found = {
        d.op: d.execution.value
        for d in plan.nodes
        if d.op in ("conv", "max_pool", "conv_transpose", "linear")
    }
    assert found == {key: FORMS[treatment(by_key[key], target)] for key in found}
    assert len(found) == 4


FREE = {"versions"}  # its keys are names of packages


def _fields(value: Any, name: str = "") -> Iterator[str]:
    """Every field name of a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if name not in FREE:
                yield key
            yield from _fields(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, name)


def test_every_field_of_a_report_is_documented() -> None:
    known = set(re.findall(r"`(\w+)`", GENERATE.PAGES["report"]()))
    assert not set(_fields(made_up().to_json())) - known
    assert f"`schema` is {SCHEMA}:" in (ROOT / "docs/report.md").read_text(encoding="utf-8")
