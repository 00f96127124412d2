"""Marks of tests that need a package, a program or a processor that not all machines have.

They skip, and say why; `.ci/run` installs what is missing and runs the skipped tests again.
"""

import pytest

from qtool.backends.onnxruntime.cpu import DEFAULT_PROFILE, machine_profile
from qtool.plugins.emulators.available import problems
from qtool.plugins.tflite import litert, tflm

HAS_VNNI = machine_profile() == DEFAULT_PROFILE
NO_WEB = problems()["wasm"]

needs_litert = pytest.mark.skipif(litert.version() is None, reason="LiteRT is not installed")
needs_tflm = pytest.mark.skipif(tflm.version() is None, reason="tflite-micro is not installed")
needs_web = pytest.mark.skipif(bool(NO_WEB), reason=f"{NO_WEB}: see docs/emulators.md")
needs_vnni = pytest.mark.skipif(
    not HAS_VNNI, reason="this processor has other integer kernels than x86-64 with VNNI"
)
