"""A process with onnxruntime-webgpu in place of onnxruntime, which runs files on the GPU.

The driver of SwiftShader, which `qtool verify --cpu webgpu` uses, is not shown to it.
"""

from __future__ import annotations

import ctypes
import json
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends import subprocess_runner
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError
from qtool.plugins.emulators.available import (
    INSTALL_PAGE,
    webgpu_folder,
    webgpu_version,
)
from qtool.plugins.emulators.runtimes import GPU_TITLE

PROVIDER = "WebGpuExecutionProvider"
_NO_FILE = "."  # of a call that has none

_LOADER = "libvulkan.so.1"
_KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}  # VkPhysicalDeviceType
_GPUS = ("integrated", "discrete", "virtual")
_PROPERTIES = 1024  # bytes, more than VkPhysicalDeviceProperties has
_HEAD = struct.Struct("<5I256s")  # versions, vendor, device, type, name
_CREATE_INSTANCE = 1  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO


class GpuProcess(subprocess_runner.SubprocessRunner):
    """The process; `onnxruntime` is imported from the folder of onnxruntime-webgpu."""

    def _command(self) -> Sequence[str]:
        *program, paths, module = super()._command()
        site = str(webgpu_folder() / "site")
        return *program, json.dumps([site, *json.loads(paths)]), module


PROCESS = GpuProcess(__name__, GPU_TITLE)


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
    vulkan = _load_vulkan(webgpu_folder() / "lib")
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
        raise VerificationError(f"{path}: {GPU_TITLE} does not load it: {error}") from error


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


@dataclass(frozen=True)
class Adapter:
    """An adapter.

    Attributes:
        name: as its driver writes it.
        kind: "discrete", "integrated" or "virtual" GPU, "software", or "other".
    """

    name: str
    kind: str

    @property
    def is_gpu(self) -> bool:
        """Whether it is hardware, whose time means something."""
        return self.kind in _GPUS


class _CreateInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("application", ctypes.c_void_p),
        ("layers", ctypes.c_uint),
        ("layer_names", ctypes.c_void_p),
        ("extensions", ctypes.c_uint),
        ("extension_names", ctypes.c_void_p),
    )


def _load_vulkan(folder: Path) -> Any:
    """Load the Vulkan loader of the system, else that in a folder; None if there is none.

    A provider that asks for the loader later gets this one.
    """
    for name in (_LOADER, str(folder / _LOADER)):
        with suppress(OSError):
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return None


def list_adapters(vulkan: Any) -> list[Adapter]:
    """Return the adapters of all installed drivers, in the loader's order.

    Args:
        vulkan: the loader; None for none.
    """
    instance, info = ctypes.c_void_p(), _CreateInfo(_CREATE_INSTANCE)
    if vulkan is None or vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)):
        return []
    count = ctypes.c_uint()
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    devices = (ctypes.c_void_p * count.value)()
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    adapters = []
    for device in devices[: count.value]:
        properties = ctypes.create_string_buffer(_PROPERTIES)
        vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
        *_, kind, name = _HEAD.unpack_from(properties)
        text = name.split(b"\0")[0].decode("utf-8", "replace")
        adapters.append(Adapter(text, _KINDS.get(kind, "other")))
    vulkan.vkDestroyInstance(instance, None)
    return adapters
