"""The documentation site, built by Sphinx: `make docs`. A warning or a dead link is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from generate import MARK, PAGES

project = "qtool"
html_title = "qtool"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
smartquotes = False  # options begin with two hyphens
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # `inspect` has headings of level 2 below a directive

default_role = "code"  # docstrings write `name` as Markdown does
autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 70
napoleon_numpy_docstring = False


def _generated(app: Sphinx, name: str, source: list[str]) -> None:
    """Fills in what is made of commands and tables."""
    if name in PAGES:
        source[0] = source[0].replace(MARK, PAGES[name]())


FIELD = re.compile(r"(\w+(?:, \w+)*): ")


def _attributes(
    app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Fields that the docstring of a dataclass describes ("name: text") become a list."""
    fields = getattr(found, "__dataclass_fields__", {})
    made: list[str] = []
    inside = False
    for line in lines:
        begins = FIELD.match(line)
        if begins and set(begins[1].split(", ")) <= set(fields):
            made += [] if inside else ["Attributes:"]
            inside = True
        elif not line or (line.endswith(":") and not line.startswith(" ")):
            inside = False
        made.append(f"    {line}" if inside else line)
    lines[:] = made


DEFAULT = re.compile(r"<function (?:[\w.]+\.)?(<lambda>|\w+) at 0x[0-9a-f]+>")


def _signature(  # Sphinx passes the arguments by position
    app: Sphinx, what: str, name: str, found: Any, options: Any, arguments: str, returns: str
) -> tuple[str, str] | None:
    """Values stand for defaults; a function is its name, without an address."""
    if not arguments:
        return None
    return DEFAULT.sub(lambda m: "..." if m[1] == "<lambda>" else m[1], arguments), returns


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _attributes, priority=400)  # before napoleon
    app.connect("source-read", _generated)
