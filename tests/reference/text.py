"""What is compared of an output: masks of what is no property of the code, and tolerances."""

import difflib
import json
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

DATE = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?")
CORES = re.compile(r"<cpu>, \d+ cores?(, \d+ GiB)?(; [\w, -]+)?")
STAGE = re.compile(r'(?<=: )\d+\.\d s\b|(?<="seconds": )[\d.]+(?=, "left")|(?<="left": )[\d.]+')
MACHINE = ("cpu", "cores", "memory_gib", "system", "features", "versions")
"""Keys of a document about the machine; "qtool" is the version in the head of each."""
WIDTH = 110
DIGITS = 9
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?|(?<!\w)[-+]?\d+e[-+]?\d{1,3}(?!\w)")
TOLERANCE = 1e-3
"""Of numbers with a decimal point on another processor or with other versions: there, sums in
another order move a scale by a last bit, and a code or two with it."""


@cache
def machine_masks() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return patterns of this machine's words, with what stands for them."""
    from qtool.backends.onnxruntime.cpu import machine_profile
    from qtool.core.option_names import PROFILE_TITLES
    from qtool.core.versions import version_of
    from qtool.evaluation.machine import this_machine

    machine, profile = this_machine(), machine_profile()
    others = ("ai_edge_litert", "transformers")
    versions = {**machine.versions, **{name: version_of(name) for name in others}}
    words = {
        machine.cpu: "<cpu>",
        machine.system: "<system>",
        PROFILE_TITLES[profile]: "<processor>",
        profile: "<profile>",
        **{version: f"<version of {name}>" for name, version in versions.items() if version},
    }
    pairs = [(re.compile(rf"(?<![\w.]){re.escape(w)}(?!\w|\.\d)"), m) for w, m in words.items()]
    return (*pairs, (CORES, "<cpu>, <cores>"), (DATE, "<date>"))


def normal_text(text: str) -> str:
    for pattern, mask in machine_masks():
        text = pattern.sub(mask, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def normal_log(text: str) -> str:
    """Return standard error without the times of stages: another thread may read the clock, too."""
    return normal_text(STAGE.sub("<time>", text))


def normal_document(text: str) -> str:
    """Return a JSON document with what fits on one line."""
    try:
        document = json.loads(text)
    except ValueError:
        return normal_text(text)
    return normal_text(_dump(_masked(document), ""))


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: f"<{k}>" if k in MACHINE else _masked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_masked(v) for v in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _dump(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(indent + line) <= WIDTH:
        return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_dump(v, deeper)}" for k, v in value.items()]
    else:
        items = [_dump(v, deeper) for v in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(deeper + item for item in items)
    return f"{left}\n{body}\n{indent}{right}"


class _Page(HTMLParser):
    """The text of a page, a line per element; without styles, scripts and drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.skipped += tag in ("style", "script", "svg")

    def handle_endtag(self, tag: str) -> None:
        self.skipped -= tag in ("style", "script", "svg")

    def handle_data(self, data: str) -> None:
        if not self.skipped and data.strip():
            self.lines.append(" ".join(data.split()))


def normal_page(text: str) -> str:
    page = _Page()
    page.feed(text)
    return normal_text("\n".join(page.lines))


def difference(expected: str, actual: str, exact: bool) -> list[str]:
    """Return the lines of a unified diff; none if the texts are equal.

    Args:
        expected: the committed text.
        actual: that of the running code.
        exact: compare numbers with a decimal point exactly, too, else within TOLERANCE.
    """
    before, after = expected.splitlines(), actual.splitlines()
    if not exact:
        after = _with_close_lines_of(before, after)
    return list(difflib.unified_diff(before, after, "expected", "actual", lineterm="", n=1))


def _with_close_lines_of(before: list[str], after: list[str]) -> list[str]:
    """Return `after` with those lines of `before` that are equal up to close numbers."""
    keys = [
        [" ".join(NUMBER.sub("#", line).split()) for line in lines] for lines in (before, after)
    ]
    after = list(after)
    for i, j, size in difflib.SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        for k in range(size):
            if _close(before[i + k], after[j + k]):
                after[j + k] = before[i + k]
    return after


def _close(before: str, after: str) -> bool:
    return all(
        abs(float(a) - float(b)) <= TOLERANCE * max(abs(float(a)), abs(float(b))) + _last_place(a)
        for a, b in zip(NUMBER.findall(before), NUMBER.findall(after), strict=True)
    )


def _last_place(number: str) -> float:
    """Return the value of the last digit that is printed."""
    mantissa, _, exponent = number.partition("e")
    return 1.01 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def environment() -> dict[str, str]:
    """Return what floating-point numbers depend on: the processor, its kernels, and versions."""
    from qtool.backends.onnxruntime.cpu import machine_profile
    from qtool.core.versions import version_of
    from qtool.evaluation.machine import this_machine

    packages = ("torch", "onnxruntime", "onnx", "numpy", "ai_edge_litert", "transformers")
    own = {"cpu": this_machine().cpu, "arithmetic": machine_profile()}
    return {**own, **{name: version_of(name) for name in packages}}
