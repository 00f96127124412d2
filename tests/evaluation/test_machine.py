"""Where a measurement was made."""

import os

import onnxruntime

from qtool.evaluation import machine as module
from qtool.evaluation.machine import this_machine


def test_it_is_this_machine() -> None:
    found = this_machine()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_gib > 0
    assert found.versions["onnxruntime"] == onnxruntime.__version__
    assert found.cpu
    assert set(found.features) <= set(module.FEATURES)
