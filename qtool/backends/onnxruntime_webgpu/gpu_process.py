"""A process with onnxruntime-webgpu in place of onnxruntime, which runs files on the GPU.

The driver of SwiftShader, which `qtool verify --cpu webgpu` uses, is not shown to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends import subprocess_runner
from qtool.backends.onnxruntime.emulation.cache_folder import (
    INSTALL_PAGE,
    webgpu_folder,
    webgpu_version,
)
from qtool.backends.onnxruntime_webgpu.vulkan_adapters import Adapter, list_adapters, load_vulkan
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError

TITLE = "ONNX Runtime's WebGPU provider"
PROVIDER = "WebGpuExecutionProvider"
_NO_FILE = "."  # of a call that has none


class GpuProcess(subprocess_runner.SubprocessRunner):
    """The process; `onnxruntime` is imported from the folder of onnxruntime-webgpu."""

    def _command(self) -> Sequence[str]:
        *program, paths, module = super()._command()
        site = str(webgpu_folder() / "site")
        return *program, json.dumps([site, *json.loads(paths)]), module


PROCESS = GpuProcess(__name__, TITLE)


@lru_cache
def adapters() -> tuple[Adapter, ...]:
    """Return the adapters of this machine, none where onnxruntime-webgpu is not installed."""
    if not webgpu_version():
        return ()
    try:
        rows = PROCESS.call("adapters", _NO_FILE)[0]["adapters"]
    except VerificationError:  # a driver crashed
        return ()
    return tuple(Adapter(*row) for row in rows)


def gpu() -> Adapter | None:
    """Return the adapter that the provider chooses: a discrete GPU before others."""
    gpus = [adapter for adapter in adapters() if adapter.is_gpu]
    return next((a for a in gpus if a.kind == "discrete"), gpus[0] if gpus else None)


def version() -> str:
    """Return the version of the provider and the GPU that it runs on."""
    adapter = gpu()
    return f"{webgpu_version()} on {adapter.name}" if adapter else webgpu_version()


def problem() -> str:
    """Return why files cannot be timed on a GPU here, with what to do; "" if they can."""
    if gpu() is not None:
        return ""
    if not webgpu_version():
        return (
            f"onnxruntime-webgpu is not installed: {INSTALL_PAGE} says how to install it, and a "
            "time needs a GPU"
        )
    software = ", ".join(a.name for a in adapters()) or "SwiftShader of `qtool verify --cpu webgpu`"
    return (
        f"Vulkan names no GPU on this machine, and software adapters ({software}) are not timed: "
        "run `qtool bench --runtime webgpu` on a machine with a GPU and its Vulkan driver"
    )


def serve() -> None:
    """Answer calls in the subprocess."""
    vulkan = load_vulkan(webgpu_folder() / "lib")
    subprocess_runner.serve(
        {
            "adapters": lambda _, __: (_as_message(list_adapters(vulkan)), ()),
            "open": lambda path, _: (_opened(path) and {}, ()),
            "run": _handle_run,
            "time": _handle_time,
        }
    )


def _as_message(rows: Sequence[Adapter]) -> Message:
    return {"adapters": [[adapter.name, adapter.kind] for adapter in rows]}


@lru_cache(maxsize=8)
def _session(path: str, _: tuple[int, int]) -> Any:
    import onnxruntime  # that of onnxruntime-webgpu

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = [PROVIDER, "CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers, enable_fallback=0)
    except Exception as error:
        raise VerificationError(f"{path}: {TITLE} does not load it: {error}") from error


def _opened(path: str) -> Any:
    status = Path(path).stat()
    return _session(path, (status.st_size, status.st_mtime_ns))


def _handle_run(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    session = _opened(path)
    names = [i.name for i in session.get_inputs()]
    return {}, session.run(None, dict(zip(names, arrays, strict=True)))


def _handle_time(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    """Return the seconds of some runs; outputs are on the CPU at the end of each."""
    times, *inputs = arrays
    session = _opened(path)
    feeds = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
    start = time.perf_counter()
    for _ in range(int(np.ravel(times)[0])):
        session.run(None, feeds)
    return {"seconds": time.perf_counter() - start}, ()
