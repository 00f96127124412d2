"""ONNX Runtime where this machine is not: emulated processors, WebAssembly."""

from qtool.core.plugins import Plugin

_HERE = "qtool.plugins.emulators"

PLUGIN = Plugin(
    runtimes={"node": f"{_HERE}.runtimes:NODE"},
    documents={"CpuComparison": f"{_HERE}.result:CpuComparison"},
)
