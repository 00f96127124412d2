"""LiteRT, the runtime of TFLite files.

It runs in a process of its own: it ends the process on some malformed files, and on parameters that
its kernels cannot represent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from qtool.backends import subprocess_runner
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays
from qtool.core.errors import InstallError, VerificationError
from qtool.core.remedies import Package
from qtool.core.types import Array
from qtool.core.versions import version_of

PACKAGE = "ai-edge-litert"
TITLE = "LiteRT"
DELEGATE = "XNNPACK"
DELEGATE_PROFILE = "xnnpack"
"""The default delegate, and the numerics profile of its kernels."""
OPTIMIZED_PROFILE = "tflite-optimized"
"""The numerics profile of the kernels that compute what the delegate leaves."""

_RUNNER = subprocess_runner.SubprocessRunner(__name__, TITLE)
_DOUBLE_LINEAR = (1, 4)
"""The first version whose reference FULLY_CONNECTED scales in float64 (docs/numerics.md)."""


def title() -> str:
    """Return what runs TFLite files, with its version."""
    return f"{TITLE} {version()}"


def version() -> str | None:
    """Return the installed version, None if it is not installed."""
    return version_of(PACKAGE) or None


def require() -> None:
    """Raise InstallError if it is not installed."""
    if version() is None:
        raise InstallError(f"{TITLE}, which runs TFLite files, is not installed", Package(PACKAGE))


def reference_profile() -> str:
    """Return the numerics profile of the reference kernels of the installed version."""
    parts = (version() or "").split(".")[:2]
    known = tuple(int(p) for p in parts if p.isdigit())
    return "tflite" if known and known < _DOUBLE_LINEAR else "tflite-2"


def run_reference(path: str | Path, arrays: Arrays) -> list[Array]:
    """Return the outputs with the reference kernels; arrays as the file takes them.

    Raises:
        VerificationError: LiteRT refuses the file or the inputs, or crashes on them.
    """
    return list(_RUNNER.call("reference", str(path), arrays)[1])


def run_default(path: str | Path, arrays: Arrays) -> list[Array]:
    """Return the outputs of an interpreter as applications make it, with XNNPACK."""
    return list(_RUNNER.call("default", str(path), arrays)[1])


def trace(path: str | Path, arrays: Arrays) -> dict[int, Array]:
    """Return the values of all tensors that operators compute, with the reference kernels."""
    message, values = _RUNNER.call("trace", str(path), arrays)
    return dict(zip(message["indices"], values, strict=True))


def left_by_delegate(path: str | Path) -> frozenset[int]:
    """Return the outputs of each operator that XNNPACK leaves to LiteRT's own kernels, as it
    reports them."""
    message, _ = _RUNNER.call("delegated", str(path))
    return frozenset(i for outputs in message["remaining"] for i in outputs)


# --- in the subprocess -------------------------------------------------------------------------


def serve() -> None:
    """Answer calls in the subprocess."""
    subprocess_runner.serve(
        {
            "reference": partial(_handle_run, "BUILTIN_REF"),
            "default": partial(_handle_run, "AUTO"),
            "trace": _handle_trace,
            "delegated": _handle_delegated,
        }
    )


def interpreter(path: str, kernels: str, *, keep: bool = False, threads: int = 1) -> Any:
    """Return an interpreter in this process.

    Args:
        path: the file.
        kernels: "BUILTIN_REF", or "AUTO" for those with XNNPACK.
        keep: the values of all tensors stay after a run.
        threads: number of threads.

    Raises:
        VerificationError: LiteRT refuses the file.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType  # an extra

    with _described(path, "does not load it"):
        return Interpreter(
            path,
            experimental_op_resolver_type=OpResolverType[kernels],
            experimental_preserve_all_tensors=keep,
            num_threads=threads,
        )


@contextmanager
def _described(path: str, what: str) -> Iterator[None]:
    """Raise errors of LiteRT with a sentence: what it does with the file."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        short = " ".join(str(error).split())[:300]
        raise VerificationError(f"{path}: LiteRT {what}: {short}") from error


def _filled(model: Any, path: str, arrays: Sequence[Array]) -> None:
    """Give an interpreter its inputs, resized to them."""
    details = model.get_input_details()
    if len(details) != len(arrays):
        raise VerificationError(f"{path} takes {len(details)} inputs, not {len(arrays)}")
    with _described(path, "refuses it"):
        for detail, array in zip(details, arrays, strict=True):
            if tuple(detail["shape"]) != array.shape:
                model.resize_tensor_input(detail["index"], array.shape)
        model.allocate_tensors()
        for detail, array in zip(details, arrays, strict=True):
            model.set_tensor(detail["index"], array)


def invoke(model: Any, path: str, arrays: Sequence[Array]) -> Any:
    """Run an interpreter on arrays as the file has them, and return it."""
    _filled(model, path, arrays)
    return _run(model, path)


def _run(model: Any, path: str) -> Any:
    with _described(path, "fails on it"):
        model.invoke()
    return model


def outputs(model: Any) -> list[Array]:
    """Return the outputs of an interpreter's last run."""
    return [model.get_tensor(d["index"]) for d in model.get_output_details()]


def _invoked(path: str, kernels: str, arrays: Arrays, **options: Any) -> Any:
    """Return an interpreter after a run; LiteRT may never end to load a damaged file."""
    import ai_edge_litert.interpreter  # noqa: F401  # which takes seconds, and no part of the limit

    with subprocess_runner.loading(path):
        model = interpreter(path, kernels, **options)
        _filled(model, path, arrays)
    return _run(model, path)


def _handle_run(kernels: str, path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    return {}, outputs(_invoked(path, kernels, arrays))


def _handle_trace(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    model = _invoked(path, "BUILTIN_REF", arrays, keep=True)
    indices, values = [], []
    for operator in model._get_ops_details():
        for index in map(int, operator["outputs"]):
            with suppress(ValueError):  # text, which has no array
                values.append(model.get_tensor(index))
                indices.append(index)
    return {"indices": indices}, values


def _handle_delegated(path: str, _: Arrays) -> tuple[Message, Arrays]:
    with subprocess_runner.loading(path):
        model = interpreter(path, "AUTO")
        with _described(path, "refuses it"):
            model.allocate_tensors()
    operators = model._get_ops_details()
    partitions = [o for o in operators if o["op_name"] == "DELEGATE"]
    known = [o for o in operators if o["op_name"] != "DELEGATE"]
    inside = {i for partition in partitions for i in _members(partition, known)}
    remaining = [list(map(int, o["outputs"])) for o in known if int(o["index"]) not in inside]
    return {"remaining": remaining}, ()


def _members(partition: Any, operators: Sequence[Any]) -> set[int]:
    """Return the operators between the inputs and the outputs of a partition."""
    maker = {int(i): o for o in operators for i in o["outputs"]}
    ends, queue = set(map(int, partition["inputs"])), list(map(int, partition["outputs"]))
    members: set[int] = set()
    while queue:
        operator = maker.get(queue.pop())
        if operator is not None and int(operator["index"]) not in members:
            members.add(int(operator["index"]))
            queue += [int(i) for i in operator["inputs"] if int(i) not in ends]
    return members
