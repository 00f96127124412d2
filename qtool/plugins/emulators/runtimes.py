"""The runtimes of browsers on this machine, which start with the first file that runs in them."""

from __future__ import annotations

from qtool.backends.session import OtherRuntime
from qtool.core.on_use import OnUse

GPU_TITLE = "ONNX Runtime's WebGPU provider"

_WEB = "qtool.plugins.emulators.web.session"
_GPU = "qtool.plugins.emulators.webgpu"

NODE = OtherRuntime(
    "node",
    "onnxruntime-web in node",
    OnUse(f"{_WEB}:web_version"),
    OnUse(f"{_WEB}:problem"),
    OnUse(f"{_WEB}:WebSession"),
)
WEBGPU = OtherRuntime(
    "webgpu",
    GPU_TITLE,
    OnUse(f"{_GPU}.gpu_process:version"),
    OnUse(f"{_GPU}.gpu_process:problem"),
    OnUse(f"{_GPU}.session:GpuSession"),
)
