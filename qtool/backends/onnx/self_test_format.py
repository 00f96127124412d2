"""The self-test in a file's metadata: a recipe for its inputs, and digests of its codes.

Stored as one JSON object of at most 8 KiB under the key `qtool_self_test`. docs/numerics.md
describes the fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import onnx

from qtool.backends.onnx.content_digest import DIGITS, content_digest
from qtool.backends.onnx.storage import LIMIT
from qtool.core.errors import MALFORMED, FileError, VerificationError
from qtool.core.remedies import OtherFile, Package

KEY = "qtool_self_test"
"""Name of the metadata."""
_FORMATS = (2, 3)
"""Formats that can be read; files are written in the last one."""
_MARK = re.compile(r'\{"format":[23],"content":"')
"""Begin of the JSON, by which a test whose key is damaged is recognised."""
MAX_BYTES = 8192
"""Size of the metadata entry."""
_MOST_ELEMENTS, _MOST_TENSORS, _MOST_VALUE = 1 << 30, 1 << 20, 1 << 62


@dataclass(frozen=True)
class InputSpec:
    """How to generate one input: integers in [low, high], times `scale` if it is float."""

    shape: tuple[int, ...]
    low: int
    high: int
    scale: float = 1.0


@dataclass(frozen=True)
class SelfTest:
    """The expected results of a file.

    Attributes:
        content: digest of the file (see content_digest.py); "" before it is in a file.
        inputs: specifications of the file's inputs, in order.
        runs: the number of runs, each with other inputs.
        kinds: a letter for each tensor of the test, in graph order: "e" exact; "-", and "a" in
            former formats, not compared.
        digests: numerics profile -> digests of groups of consecutive exact tensors.
        missing: why there is no test; then only `content` is set.
        format: version of the JSON.
    """

    content: str
    inputs: tuple[InputSpec, ...] = ()
    runs: int = 0
    kinds: str = ""
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = ""
    format: int = _FORMATS[-1]

    def text(self) -> str:
        """Return the JSON for the file."""
        data: dict[str, Any] = {"format": self.format, "content": self.content}
        if self.missing:
            return _json({**data, "missing": self.missing})
        profiles: dict[tuple[str, ...], list[str]] = {}
        for profile, digests in self.digests.items():  # equal digests are written once
            profiles.setdefault(digests, []).append(profile)
        data |= {
            "runs": self.runs,
            "inputs": [[list(i.shape), i.low, i.high, i.scale] for i in self.inputs],
            "kinds": [[kind, len(list(run))] for kind, run in groupby(self.kinds)],
            "digests": [[names, "".join(d), len(d)] for d, names in profiles.items()],
        }
        return _json(data)

    def __str__(self) -> str:
        if self.missing:
            return f"self-test: none, {self.missing}"
        return (
            f"self-test: {self.runs} runs on generated inputs, {self.kinds.count('e')} integer "
            f"tensors ({', '.join(self.digests) or 'none'})"
        )

    def metadata(self) -> dict[str, str]:
        """Return key and value for the file."""
        return {KEY: self.text()}

    @classmethod
    def of(cls, model: onnx.ModelProto) -> SelfTest | None:
        """Read the test of a model, None without one.

        Raises:
            VerificationError: it is damaged, or of a newer format.
        """
        entries = sorted(model.metadata_props, key=lambda p: p.key != KEY)  # one of a source last
        marked = (p.value for p in entries if p.key == KEY or _MARK.match(p.value))
        text = next(marked, None)
        return None if text is None else cls.read(text)

    @classmethod
    def read(cls, text: str) -> SelfTest:
        """Read the JSON of a file.

        Raises:
            VerificationError: it is damaged, or of a newer format.
        """
        try:
            data = json.loads(text)
            if data["format"] not in _FORMATS:
                raise VerificationError(
                    f"the self-test in the file has format {data['format']!r}; this version of "
                    f"qtool reads format {_FORMATS[-1]}",
                    OtherFile("convert again"),
                    Package("qtool", "use a newer {}"),
                )
            return _parse(data)
        except MALFORMED as error:
            raise VerificationError(
                f"the self-test in the file's metadata is damaged ({error!r})",
                OtherFile("take a fresh copy of the file"),
                OtherFile("convert again"),
            ) from error


def attach(path: Path, test: SelfTest) -> None:
    """Add a self-test to a file without one, with the digest of the whole.

    The message is appended: protobuf merges concatenated messages.

    Raises:
        FileError: the file cannot be read or written.
    """
    entry = onnx.StringStringEntryProto(key=KEY, value=replace(test, content="0" * DIGITS).text())
    entry.value = replace(test, content=content_digest(path, entry)).text()
    more = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
    try:
        if path.stat().st_size + len(more) > LIMIT:
            return  # the message would exceed its limit
        with path.open("ab") as file:
            file.write(more)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _parse(data: Mapping[str, Any]) -> SelfTest:
    if "missing" in data:
        content, missing = str(data["content"]), str(data["missing"])
        return SelfTest(content, missing=missing, format=data["format"])
    sizes = [prod(map(int, shape)) for shape, *_ in data["inputs"]]
    counts = [int(count) for _, count in data["kinds"]] + [int(n) for *_, n in data["digests"]]
    if int(data["runs"]) < 0 or any(int(n) < 0 for shape, *_ in data["inputs"] for n in shape):
        raise ValueError("a negative number")
    if max(sizes, default=0) > _MOST_ELEMENTS or sum(counts) + int(data["runs"]) > _MOST_TENSORS:
        raise ValueError("sizes beyond all that qtool writes")
    digests = {
        str(name): tuple(text[len(text) // count * i :][: len(text) // count] for i in range(count))
        for names, text, count in data["digests"]
        for name in names
    }
    inputs = [
        InputSpec(tuple(map(int, shape)), int(low), int(high), float(scale))
        for shape, low, high, scale in data["inputs"]
    ]
    if any(not -_MOST_VALUE <= i.low <= i.high <= _MOST_VALUE for i in inputs):
        raise ValueError("a range beyond all that qtool writes")
    return SelfTest(
        str(data["content"]),
        tuple(inputs),
        int(data["runs"]),
        "".join(str(letter) * int(count) for letter, count in data["kinds"]),
        digests,
        format=data["format"],
    )
