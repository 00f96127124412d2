"""The runtime of browsers on this machine, which starts with the first file that runs in it."""

from __future__ import annotations

from qtool.backends.session import OtherRuntime
from qtool.core.on_use import OnUse

_WEB = "qtool.plugins.emulators.web.session"

NODE = OtherRuntime(
    "node",
    "onnxruntime-web in node",
    OnUse(f"{_WEB}:web_version"),
    OnUse(f"{_WEB}:problem"),
    OnUse(f"{_WEB}:WebSession"),
)
