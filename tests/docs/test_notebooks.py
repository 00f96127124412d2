"""Notebooks made from the tutorials: valid, and of the same code."""

import ast
import sys

import pytest

from tests.docs.snippets import ROOT, blocks

PAGES = sorted(p.name for p in (ROOT / "docs").glob("tutorial*.md"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", PAGES)
def test_all_code_of_a_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "notebooks", raising=False)
    from notebooks import notebook

    page = (ROOT / "docs" / name).read_text()
    made = notebook(page)  # validated there
    code = [c.source for c in made.cells if c.cell_type == "code"]
    plain = [c for c in code if not c.startswith("%%")]
    wanted = [b for b in blocks(f"docs/{name}") if b.file or b.language in ("python", "sh")]
    assert len(code) == len(wanted) > 0
    assert len(plain) == sum(b.language == "python" and not b.file for b in wanted)
    for each in plain:
        ast.parse(each)
    assert notebook(page) == made
