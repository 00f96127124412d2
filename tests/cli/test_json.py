"""Each command's JSON is one document, valid for the description that docs/report.md comes from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from qtool.cli import COMMANDS, SCHEMA
from qtool.cli.documents import DOCUMENTS, Envelope, Error

import qtool
from qtool.core.json_schema import json_schema
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from tests.cli.conftest import DIGITS, Cli
from tests.cli.float_onnx import write_float_onnx

DATA = ("--data", "calib_data/digits")
EVAL = ("--data", "examples/digits/eval.npz", "--labels", "labels")
FLOAT = ("--model", *DIGITS)
DECODER = str(Path(__file__).parents[2] / "examples/language_model/model")
FAST = ("--accuracy", "fast")
CALLS = {
    "quantize": ("quantize", *DIGITS, *DATA, "-o", "a.onnx", *FAST, "--seconds", "0.01"),
    "calibrate": ("calibrate", *DIGITS, *DATA, "-o", "a.calib"),
    "merge": ("merge", "digits.calib", "second.calib", "-o", "all.calib"),
    "convert": (
        *("convert", *DIGITS, "--calibration", "digits.calib", "-o", "a.onnx"),
        *(*FAST, "--seconds", "0"),
    ),
    "blockwise": (
        *("blockwise", "float.onnx", "-o", "a.onnx", *FAST),
        *("--data", "x.npy", "--mode", "dynamic"),
    ),
    "verify": ("verify", "digits.int8.onnx", "--samples", "8"),
    "gate": ("gate", "digits.int8.onnx", "--against", "second.onnx", *EVAL, "--metric", "top-1"),
    "evaluate": ("evaluate", "digits.int8.onnx", *FLOAT, *EVAL, "--seconds", "0.01"),
    "report": (
        *("report", "digits.int8.onnx", *FLOAT, *EVAL, "-o", "report"),
        *("--seconds", "0.01", "--batch-sizes", "1", "--budget", "2.5"),
    ),
    "compare": (
        *("compare", "digits.int8.onnx", "second.onnx", *EVAL),
        *("--seconds", "0.01", "--batch-sizes", "1"),
    ),
    "bench": ("bench", "digits.int8.onnx", "--seconds", "0.01", "--batch-sizes", "1"),
    "generate": ("generate", "decoder.onnx", "a text", "--tokenizer", DECODER, "--tokens", "2"),
    "tune": (
        *("tune", *DIGITS, *DATA, "--eval-data", *EVAL[1:], "-o", "a.onnx"),
        *("--evaluations", "1", "--accuracy", "fast", "--choices", "static,float"),
    ),
    "explain": ("explain", "digits.int8.onnx", *FLOAT, *EVAL),
    "inspect": ("inspect", "digits.int8.onnx"),
    "inspect a calibration": ("inspect", "digits.calib"),
    "emulators": ("emulators",),
    "an error": ("inspect", "no.calib"),
    "an unknown option": ("inspect", "--no"),
}


def write_decoder(path: Path) -> None:
    """Write the float file of a layer of the example's language model."""
    library = pytest.importorskip("transformers")
    config = library.AutoConfig.from_pretrained(DECODER, num_hidden_layers=1)
    model = DecoderWithCache(library.AutoModelForCausalLM.from_config(config)).eval()
    ids = torch.arange(3, 14)[None]
    batch = model.with_cached_prefix(ids, torch.ones_like(ids), 4)
    qtool.capture_model(model, batch, DYNAMIC).export_float(path)


def test_every_command_is_called_and_described() -> None:
    assert {call[0] for call in CALLS.values()} == set(COMMANDS) == set(DOCUMENTS)


@pytest.mark.parametrize("name", CALLS)
def test_the_document_is_as_described(name: str, sample: Cli) -> None:
    command = CALLS[name][0]
    shutil.copy("digits.calib", "second.calib")
    shutil.copy("digits.int8.onnx", "second.onnx")
    write_float_onnx(sample.folder)
    if command == "generate":
        write_decoder(sample.folder / "decoder.onnx")
    result = sample(*CALLS[name], "--json", code=(0, 1, 2))
    document = json.loads(result.stdout)
    failed = result.exit_code == 2
    alternatives = ((Error,),) if failed else DOCUMENTS[command]
    complaints = [list(complain(document, merged((Envelope, *parts)))) for parts in alternatives]
    assert [] in complaints, complaints
    assert document["command"] == command
    assert (document["schema"] == SCHEMA) or command in ("report", "compare")
    assert failed == ("error" in document) == name.startswith("an ")


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
