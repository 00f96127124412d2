"""ONNX Runtime sessions, and the optimised graph that the runtime executes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from qtool.backends.onnxruntime.unfolded_tensors import unfolded_tensor
from qtool.backends.runtime import Arrays, Runtime
from qtool.backends.session import FLOATS, Clock, PortInfo, fit_channels, time_calls, wrong_size
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
from qtool.core.paths import is_file, is_special_file
from qtool.core.types import Array

RUNTIME = f"onnxruntime {ort.__version__}"
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
"""Major and minor version of the runtime."""
_MOST_DIMENSIONS = 64
SILENT = 4  # fatal errors only: others are raised
_EXTERNAL_WEIGHTS = "session.optimized_model_external_initializers"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_SUFFIX = re.compile(r"(_token_\d+|_nchwc|_nhwc)+$")


def session(
    path: str | Path,
    optimise: bool = True,
    threads: int = 0,
    save_to: Path | None = None,
    once: bool = False,
    outputs: Sequence[str] = (),
) -> ort.InferenceSession:
    """Open a CPU session of a file.

    Args:
        path: the ONNX file.
        optimise: False runs the graph as written, node by node.
        threads: intra-op threads; 0 lets the runtime choose.
        save_to: where the runtime writes the graph that it executes, for `read_graph`.
        once: whether the session has only one or two runs: memory is freed after each run instead
            of held in an arena.
        outputs: names of tensors to return after the outputs of the file.

    Raises:
        VerificationError: the runtime refuses the file; with its message.
    """
    if is_special_file(path):
        raise VerificationError(f"{path}: not a regular file")
    if (tensor := unfolded_tensor(Path(path))) is not None:
        raise VerificationError(
            f"'{tensor[0]}' would take {tensor[1] / 2**30:.1f} GiB, too much for a file of this "
            "size: it is not run"
        )
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = not once
    if save_to is not None:
        write_graph(options, save_to)
    source = _with_outputs(path, outputs, options) if outputs else str(path)
    try:
        opened = cpu_session(source, options, threads)
    except Exception as error:
        raise VerificationError(f"{path}: {RUNTIME} does not load it: {error}") from error
    for port in (*opened.get_inputs(), *opened.get_outputs()):
        if len(port.shape or ()) > _MOST_DIMENSIONS:
            raise VerificationError(
                f"{path}: '{port.name}' has {len(port.shape)} dimensions, and arrays of NumPy have "
                f"at most {_MOST_DIMENSIONS}"
            )
    return opened


def cpu_session(
    source: str | bytes, options: ort.SessionOptions | None = None, threads: int = 1
) -> ort.InferenceSession:
    """Open a file or a model in bytes on the CPU; raises what the runtime raises.

    Args:
        source: the path or the bytes.
        options: further options.
        threads: intra-op threads; 0 lets the runtime choose.
    """
    options = options or ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = SILENT
    return ort.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def feeds(model: ort.InferenceSession, arrays: Arrays) -> dict[str, Any]:
    """Return input name -> array, for arrays in the order of the inputs.

    Floating point arrays are converted to the type of the input: a float16 file runs on the batch
    of its int8 file, which takes float32. Channels of images are moved where a file of another
    layout is next to this one.
    """
    pairs = zip(model.get_inputs(), arrays, strict=True)
    return {i.name: _converted(fit_channels(a, i.shape), FLOATS.get(i.type)) for i, a in pairs}


def _converted(array: Array, dtype: type | None) -> Array:
    if dtype is None or array.dtype.kind != "f":
        return array
    return array.astype(dtype, copy=False)


def run(model: ort.InferenceSession, arrays: Arrays, name: str = "the model") -> list[Array]:
    """Run one batch and return the outputs; arrays in the order of the inputs.

    Args:
        model: the session.
        arrays: one per input.
        name: name of the file, for errors.

    Raises:
        VerificationError: the arrays have other sizes than the file takes, or the runtime fails.
    """
    try:
        return list(model.run(None, feeds(model, arrays)))
    except Exception as error:
        raise _failure(model, arrays, name, error) from error


def _failure(
    model: ort.InferenceSession, arrays: Arrays, name: str, error: Exception
) -> VerificationError:
    ports = model.get_inputs()
    if len(ports) == len(arrays):
        sized = zip(ports, feeds(model, arrays).values(), strict=True)
        if (wrong := wrong_size(name, sized)) is not None:
            return wrong
    return VerificationError(f"{RUNTIME} fails on {name}: {error}")


class OnnxSession:
    """See `Session`: an ONNX file on the CPU.

    Args:
        path: the file.
        threads: 0 lets the runtime choose.
        as_written: compute outputs without optimisation. Integer kernels of this CPU may round, and
            saturate, as the runtime that the file is for does not.

    Raises:
        VerificationError: the runtime refuses the file.
    """

    def __init__(self, path: str | Path, threads: int = 0, as_written: bool = False) -> None:
        self._timed, self._name = session(path, threads=threads), Path(path).name
        self._session = session(path, False, threads) if as_written else self._timed
        self.inputs, self.outputs = (
            [PortInfo(p.name, p.type, with_cache_sizes(path, p.name, p.shape)) for p in ports]
            for ports in (self._session.get_inputs(), self._session.get_outputs())
        )

    def run(self, arrays: Arrays) -> list[Array]:
        return run(self._session, arrays, self._name)

    def seconds(self, arrays: Arrays, times: int, clock: Clock) -> float:
        try:
            call = partial(self._timed.run, None, feeds(self._timed, arrays))
            return time_calls(call, times, clock)
        except Exception as error:
            raise _failure(self._timed, arrays, self._name, error) from error


def _with_outputs(path: str | Path, outputs: Sequence[str], options: ort.SessionOptions) -> bytes:
    """Return the file with more outputs, as bytes.

    Nothing is parsed: protobuf merges concatenated messages. Weights in a second file stay there.
    """
    graph = onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in outputs])
    options.add_session_config_entry(_DATA_FOLDER, str(Path(path).resolve().parent))
    more: bytes = onnx.ModelProto(graph=graph).SerializeToString()
    return Path(path).read_bytes() + more


def optimised_graph(path: str | Path) -> onnx.ModelProto:
    """Return the graph that the runtime executes after its optimisations, without weights."""
    with scratch_folder() as folder:
        saved = folder / "optimised.onnx"
        session(path, save_to=saved)
        return read_graph(saved)


def write_graph(options: ort.SessionOptions, path: Path) -> None:
    """Make the runtime write the graph that it executes.

    Weights go into a file next to it, since they may exceed one message.
    """
    options.optimized_model_filepath = str(path)
    for key, value in (("file_name", f"{path.name}.data"), ("min_size_in_bytes", "1024")):
        options.add_session_config_entry(f"{_EXTERNAL_WEIGHTS}_{key}", value)


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the graph of `write_graph`, without weights."""
    return onnx.load(path, load_external_data=False)


def without_suffix(name: str) -> str:
    """Return the name in the file of a node or tensor of the optimised graph."""
    return _SUFFIX.sub("", name)


def _run(path: str | Path, arrays: Arrays) -> list[Array]:
    return run(session(path), arrays)


ONNXRUNTIME = Runtime(
    "onnxruntime", "ONNX Runtime", "onnxruntime", lambda: ort.__version__, _run, graph_readable=True
)


_CONFIG, _PAST = "genai_config.json", "past"
_SIZES = {1: "num_key_value_heads", 3: "head_size"}
"""Axis of keys and values -> its size in the configuration."""


def with_cache_sizes(
    path: str | Path, name: str, shape: Sequence[int | str | None]
) -> tuple[int | str | None, ...]:
    """Return the shape of an input, whose number of heads and their width are known.

    Args:
        path: the ONNX file.
        name: name of the input; one of a KV cache is [samples, heads, tokens, width].
        shape: as the file has it.
    """
    open_axes = [axis for axis in _SIZES if len(shape) == 4 and not isinstance(shape[axis], int)]
    if not name.startswith(_PAST) or not open_axes:
        return tuple(shape)
    sizes = _decoder(Path(path).parent / _CONFIG)
    known = {axis: sizes.get(_SIZES[axis]) for axis in open_axes}
    return tuple(known[a] if isinstance(known.get(a), int) else s for a, s in enumerate(shape))


def _decoder(config: Path) -> dict[str, int]:
    """Return the entries of the decoder; {} without any that can be read."""
    if not is_file(config):
        return {}
    try:
        decoder = json.loads(config.read_text("utf-8"))["model"]["decoder"]
        return {key: decoder[key] for key in _SIZES.values()}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
