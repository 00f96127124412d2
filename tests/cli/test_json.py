"""Each command's JSON is one document, valid for the description that docs/report.md comes from."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from enum import Enum
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from qtool.cli import COMMANDS, SCHEMAS
from qtool.cli.document_table import documents as described
from qtool.cli.documents import Envelope, Error

from qtool.core.records import is_record, json_fields
from tests.cli.conftest import DIGITS, Cli
from tests.reference.record import EXPECTED

EVAL = ("--data", "examples/digits/eval.npz", "--labels", "labels")
FLOAT = ("--model", *DIGITS)
CALLS = {
    "merge": ("merge", "digits.calib", "second.calib", "-o", "all.calib"),
    "report": (
        *("report", "digits.int8.onnx", *FLOAT, *EVAL, "-o", "report"),
        *("--seconds", "0.01", "--batch-sizes", "1", "--budget", "2.5"),
    ),
    "tune": (
        *("tune", *DIGITS, "--data", "calib_data/digits", "--eval-data", *EVAL[1:], "-o", "a.onnx"),
        *("--evaluations", "1", "--accuracy", "fast", "--choices", "static,float"),
    ),
}
"""Commands of which tests/reference has no document."""
PRINTED = re.compile(
    r"^\$ qtool (?:--\S+ \S+ )*(\S+).* --json\nexit code (\d)\n(\{.*?^\})", re.MULTILINE | re.DOTALL
)
MACHINE = {'"<versions>"': "{}", '"<cores>"': "2", '"<memory_gib>"': "8.0", '"<features>"': "[]"}
"""What stands in the committed documents for facts of a machine, and such facts."""


def documents() -> Iterator[tuple[str, str, Any]]:
    """Yield (command, exit code, document) of what is committed."""
    for file in EXPECTED.glob("*.txt"):
        for command, code, text in PRINTED.findall(file.read_text("utf-8")):
            for placeholder, value in MACHINE.items():
                text = text.replace(placeholder, value)
            yield command, code, json.loads(text)


def check(command: str, failed: bool, document: Any) -> None:
    alternatives = ((Error,),) if failed else described()[command]
    complaints = [complain(document, fields_of((Envelope, *parts))) for parts in alternatives]
    assert [] in complaints, complaints
    assert (document["schema"] == SCHEMAS.get(command, 1)) or command in ("report", "compare")
    assert failed == ("error" in document)


def test_committed_documents_are_as_described() -> None:
    succeeded = set(CALLS)
    for command, code, document in documents():
        check(command, code == "2", document)
        assert document["command"] == command or code == "2"
        succeeded |= {command} if code != "2" else set()
    assert succeeded == set(COMMANDS) == set(described())


@pytest.mark.parametrize("name", CALLS)
def test_the_document_is_as_described(name: str, sample: Cli) -> None:
    shutil.copy("digits.calib", "second.calib")
    document = json.loads(sample(*CALLS[name], "--json", code=(0, 1)).stdout)
    check(name, False, document)
    assert document["command"] == name


def fields_of(kinds: tuple[type, ...]) -> dict[str, Any]:
    """Key -> type of the object that records together are written as."""
    return {key: hint for kind in kinds for key, (hint, _) in json_fields(kind).items()}


def complain(value: Any, hint: Any, path: str = "") -> list[str]:
    """What of a value is not as its type is written."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, dict):
        keys = [f"{path}: {key} is on one side" for key in value.keys() ^ hint.keys()]
        both = value.keys() & hint.keys()
        return keys + [c for k in both for c in complain(value[k], hint[k], f"{path}.{k}")]
    if origin in (Union, UnionType):
        each = [complain(value, one, path) for one in arguments]
        return [] if [] in each else each[0]
    if origin in (tuple, list) and isinstance(value, list):
        kinds = arguments if len(arguments) == len(value) != 1 else [arguments[0]] * len(value)
        kinds = [arguments[0]] * len(value) if ... in arguments else kinds
        pairs = enumerate(zip(value, kinds, strict=True))
        return [c for i, (v, kind) in pairs for c in complain(v, kind, f"{path}[{i}]")]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return [c for k, v in value.items() for c in complain(v, arguments[1], f"{path}.{k}")]
    if is_record(hint) and not hasattr(hint, "JSON_FORM") and isinstance(value, dict):
        return complain(value, fields_of((hint,)), path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [] if value in {member.value for member in hint} else [f"{path}: {value}"]
    written = {float: int | float | None, Any: object, NoneType: NoneType}
    plain = written.get(hint, hint if hint in (int, str, bool) else None)
    if plain is None:
        plain = str if isinstance(hint, type) and issubclass(hint, PathLike) else dict
    wrong = not isinstance(value, plain) or (isinstance(value, bool) and hint in (int, float))
    return [f"{path}: {value!r} is not {hint}"] if wrong else []
