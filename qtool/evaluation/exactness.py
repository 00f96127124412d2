"""The comparison of a file with the integer engine, which needs torch; else its self-test."""

from __future__ import annotations

from qtool.backends.model_file import ModelFile
from qtool.core.errors import KernelError
from qtool.core.store import Store
from qtool.core.torch_package import has_torch
from qtool.evaluation.measure.output_pass import FirstBatches
from qtool.verification import Exactness, SelfCheck

EXACT_SAMPLES = 64


def exactness_of(
    store: Store, index: int, file: ModelFile, first: FirstBatches
) -> Exactness | None:
    """Return how exactly the runtime computes what the integer engine does.

    None if the file is not quantized, the engine lacks a kernel for it, or torch is not installed.

    Args:
        store: where intermediate results are.
        index: number of the file in the report.
        file: the file.
        first: the first batches of the data.
    """
    if not file.is_quantized or not has_torch():
        return None
    try:
        return store.load_or_make(
            f"exactness{index}",
            Exactness,
            lambda: file.compare_codes(first.heads(file.path, EXACT_SAMPLES)),
        )
    except KernelError:
        return None


def self_test_of(file: ModelFile, exactness: Exactness | None) -> SelfCheck | None:
    """Return the result of the test in a file, if it was not compared with the integer engine."""
    if exactness is not None or not file.is_quantized:
        return None
    check = file.check_self_test()
    return check if check.tensors or not check.passed else None
