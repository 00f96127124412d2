"""The adapters of Vulkan on this machine, asked in a process that may crash in a driver."""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOADER = "libvulkan.so.1"
_KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}  # VkPhysicalDeviceType
_GPUS = ("integrated", "discrete", "virtual")
_PROPERTIES = 1024  # bytes, more than VkPhysicalDeviceProperties has
_HEAD = struct.Struct("<5I256s")  # versions, vendor, device, type, name
_CREATE_INSTANCE = 1  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO


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


def load_vulkan(folder: Path) -> Any:
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
