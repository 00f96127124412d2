"""The blocks of code in the documentation, found and run.

```python   run, all blocks of a page in one namespace, in which stands what `given` gives
```sh       commands: `qtool` is run in this process; make and pip are only looked at
```output   what the block before it prints: see `differences`
```text     not run
any block whose first line is `# name.toml` or `# name.py` is kept as that file
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from qtool.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(
        str(p.relative_to(ROOT))
        for folder in ("docs", "examples")
        for p in ROOT.glob(f"{folder}/**/*.md")
    ),
]
LANGUAGES = {"python", "sh", "output", "text", "toml", "yaml"}
LANGUAGES |= {"{include}", "{eval-rst}", "{toctree}"}
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:toml|py))\n")
QUICK = {"--seconds": "0.05"}  # whatever a command has of these, and is not given


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        found = FILE.match(self.text)
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    found = [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in FENCE.finditer(text)]
    assert {b.language for b in found} <= LANGUAGES, page
    return found


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def run_command(words: list[str]) -> str:
    """What a command prints. Raises AssertionError where it fails or is not known."""
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8"), words
        return ""
    if words[0] == "pip":
        return ""
    if words[:2] == ["python", "-m"]:
        assert find_spec(words[2]), words
        return ""
    if words[0] == "python":
        assert (ROOT / words[1]).exists(), words
        return ""
    assert words[0] == "qtool", words
    name = next(w for w in words[1:] if w in main.list_commands(click.Context(main)))
    command = main.get_command(click.Context(main), name)
    has = {option for p in command.params for option in p.opts}
    quick = {} if any(w.endswith("report.json") for w in words) else QUICK  # measures nothing
    extra = [w for o, v in quick.items() if o in has and o not in words for w in (o, v)]
    result = CliRunner().invoke(main, words[1:] + extra, prog_name="qtool")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1), (
        result.output
    )  # 1: a precision or goal that a busy machine misses
    return result.output


def run_python(block: Block, names: dict[str, Any]) -> str:
    """What a block prints."""
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, "documentation", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def differences(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and that were not printed, in this order; numbers may differ.

    Of a line that ends in "..." the beginning counts, and a line "..." stands for any. Lines about
    time are not compared.
    """
    found = [_masked(line) for line in printed.splitlines()]
    missing, at = [], 0
    for line in shown.splitlines():
        wanted = _masked(line)
        if wanted in ("", "...") or re.search(r" ms\b|x as fast|latency", line):
            continue
        begins = wanted.endswith("...")
        matches = (
            i
            for i, text in enumerate(found[at:], at)
            if text == wanted or (begins and text.startswith(wanted.removesuffix("...").rstrip()))
        )
        place = next(matches, None)
        if place is None:
            missing.append(line)
        else:
            at = place + 1
    return missing


def _masked(line: str) -> str:
    line = line.replace("(unchanged;", "(+0 points;")  # the same text where kernels round otherwise
    return " ".join(re.sub(r"[-+]?\d[\d,.]*", "#", line).split())
