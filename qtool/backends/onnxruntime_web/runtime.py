"""onnxruntime-web as a runtime of ONNX files: WebAssembly, which browsers run, in node."""

from __future__ import annotations

from qtool.backends.onnxruntime_web.node_process import REMEDY, version
from qtool.backends.onnxruntime_web.session import WebSession
from qtool.backends.session import OtherRuntime

NODE = OtherRuntime("node", "onnxruntime-web in node", version, REMEDY, WebSession)
