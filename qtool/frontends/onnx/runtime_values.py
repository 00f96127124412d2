"""Runs a file in ONNX Runtime: types of its values, and their values on a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from qtool.backends.onnx.loops import DeadlineError, run_within
from qtool.backends.onnx.storage import fits_one_message, save
from qtool.backends.onnx.subgraph import runtime_message, unoptimized_session
from qtool.core.errors import CaptureError
from qtool.core.remedies import OtherFile
from qtool.frontends.onnx.node_calls import Array

_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float double"
_TENSORS = frozenset(f"tensor({name})" for name in _NUMBERS.split())


def non_tensor_values(model: onnx.ModelProto) -> frozenset[str]:
    """Return the intermediate values that torch has no tensors for: sequences, strings, 4-bit.

    Raises:
        CaptureError: ONNX Runtime cannot load the file.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    names = _intermediate_values(model)
    extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    try:
        outputs = _open_session(extended).get_outputs()
    except Exception as error:
        raise _run_error(error, model) from error
    return frozenset(o.name for o in outputs if o.type not in _TENSORS)


def run_file(
    model: onnx.ModelProto, inputs: Mapping[str, Array], every: bool = False
) -> dict[str, Array]:
    """Return the outputs of a file by name.

    Args:
        model: the file.
        inputs: name -> array.
        every: also return all intermediate tensors.

    Raises:
        CaptureError: ONNX Runtime cannot run the file on this batch.
    """
    extended = model
    if every:
        excluded = non_tensor_values(model)
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        between = [n for n in _intermediate_values(model) if n not in excluded]
        extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in between)
    return open_file(extended)(inputs)


def open_file(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return a function from the inputs of a file to its outputs, both by name.

    Raises:
        CaptureError: ONNX Runtime cannot load the file, or run it on a batch.
    """
    names = [o.name for o in model.graph.output]
    try:
        session = _open_session(model)
    except Exception as error:
        raise _run_error(error, model) from error

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            results = run_within(session, inputs, model.graph, names)
        except DeadlineError:
            raise
        except Exception as error:
            raise _run_error(error, model) from error
        return dict(zip(names, results, strict=True))

    return run


def _open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    if fits_one_message(model):
        return unoptimized_session(model)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return unoptimized_session(path)


def _intermediate_values(model: onnx.ModelProto) -> list[str]:
    outputs = {o.name for o in model.graph.output}
    values = dict.fromkeys(o for n in model.graph.node for o in n.output if o)
    return [n for n in values if n not in outputs]


def _run_error(error: Exception, model: onnx.ModelProto) -> CaptureError:
    """Return an error with the runtime's message; the runtime has few operators before opset 13."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    old = opset < 13 and "find an implementation" in str(error)
    return CaptureError(
        f"ONNX Runtime cannot run the file: {runtime_message(error)}",
        *([OtherFile("convert it with onnx.version_converter")] if old else []),
    )
