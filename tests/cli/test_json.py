"""Each command's JSON is one document, valid for the description that docs/report.md comes from."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from qtool.cli import COMMANDS, SCHEMAS
from qtool.cli.document_table import documents as described
from qtool.cli.documents import Envelope, Error

from qtool.core.json_schema import json_schema
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
    "explain": ("explain", "digits.int8.onnx", *FLOAT, *EVAL),
    "emulators": ("emulators",),
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
    complaints = [list(complain(document, merged((Envelope, *parts)))) for parts in alternatives]
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


def merged(parts: tuple[type, ...]) -> dict[str, Any]:
    schemas = [json_schema(part) for part in parts]
    whole: dict[str, Any] = {"properties": {}, "$defs": {}}
    for schema in schemas:
        whole["properties"] |= schema["properties"]
        whole["$defs"] |= schema.get("$defs", {})
    return whole | {
        "type": "object",
        "required": list(whole["properties"]),
        "additionalProperties": False,
    }


TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "number": int | float,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def complain(value: Any, schema: dict[str, Any], root: Any = None, path: str = "") -> list[str]:
    """What of a value is not as in a JSON Schema, for the words that `json_schema` uses."""
    root = root or schema
    if "$ref" in schema:
        return complain(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        each = [complain(value, s, root, path) for s in schema["anyOf"]]
        return [] if [] in each else each[0]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value} is none of {schema['enum']}"]
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(isinstance(value, TYPES[k]) for k in kinds):
            return [f"{path}: {value!r} is not {schema['type']}"]
        if isinstance(value, bool) and "boolean" not in kinds:
            return [f"{path}: {value!r} is not {schema['type']}"]
    if isinstance(value, list):
        items = schema.get("items", {})
        return [c for i, v in enumerate(value) for c in complain(v, items, root, f"{path}[{i}]")]
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        wrong = [f"{path}: lacks {k}" for k in schema.get("required", ()) if k not in value]
        for key, part in value.items():
            if key not in known and more is False:
                wrong.append(f"{path}: {key} is not described")
            else:
                own = known.get(key, more or {})
                wrong += complain(part, own, root, f"{path}.{key}")
        return wrong
    return []
