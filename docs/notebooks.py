"""Notebooks made from the tutorials, which are written once, as pages: `make notebooks`.

    python docs/notebooks.py [FOLDER]

They are run from the repository's root, like the commands of the pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).parent
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.(?:toml|py))\n")
_RUN = {"python": "", "sh": "%%sh\n"}  # what stands before the code; other blocks are read


def notebook(page: str) -> Any:
    """Text and what it shows as cells of Markdown; code as cells that run."""
    found = new_notebook(cells=[c for c in _cells(page) if c.source])
    for index, cell in enumerate(found.cells):  # names drawn at random would differ each time
        cell.id = f"cell-{index}"
    nbformat.validate(found)
    return found


def _cells(page: str) -> Iterator[Any]:
    text = ""
    end = 0
    for fence in _FENCE.finditer(page):
        language, code = fence.groups()
        text += page[end : fence.start()]
        end = fence.end()
        file = _FILE.match(code)
        if file or language in _RUN:
            yield new_markdown_cell(text.strip())
            text = ""
            before = f"%%writefile {file[1]}\n" if file else _RUN[language]
            yield new_code_cell(before + code.strip())
        elif not language.startswith("{"):
            text += fence[0]
    yield new_markdown_cell((text + page[end:]).strip())


def main() -> None:
    folder = Path(sys.argv[1] if sys.argv[1:] else "build/notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(HERE.glob("tutorial*.md")):
        nbformat.write(notebook(page.read_text()), folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main()
