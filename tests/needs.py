"""Marks of tests that need a package or a program that few machines have.

They skip, and say why; `.ci/run` installs what is missing and runs the skipped tests again.
"""

from __future__ import annotations

import pytest

import qtool
from qtool.backends.tflite import litert, tflm

NO_WEB = qtool.emulators().cpus["wasm"]

needs_litert = pytest.mark.skipif(litert.version() is None, reason="LiteRT is not installed")
needs_tflm = pytest.mark.skipif(tflm.version() is None, reason="tflite-micro is not installed")
needs_web = pytest.mark.skipif(bool(NO_WEB), reason=f"{NO_WEB}: see `qtool emulators`")
