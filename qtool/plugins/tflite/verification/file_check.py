"""The check of a TFLite file alone: its self-test, and LiteRT against the integer engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from qtool.backends.subprocess_runner import TimeLimitError
from qtool.core.errors import KernelError, VerificationError
from qtool.core.types import Array, Progress
from qtool.plugins.tflite.model_file import TfliteModelFile
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification.codes import compare_delegate_codes, compare_litert_codes
from qtool.verification import Exactness, FileCheck


def verify(
    opened: TfliteModelFile, batches: Iterable[Sequence[Array]], progress: Progress
) -> FileCheck:
    """Compare the engine with LiteRT's reference kernels, and with its delegate.

    See `ModelFile.verify`.
    """
    self_test = opened.check_self_test()
    if self_test.unmodified is False:  # LiteRT crashes or hangs on some damaged files
        why = "the file was modified"
        return FileCheck(0, 0, 0, 0.0, None, 0, self_test=self_test, not_compared=why)
    file, inputs = TfliteFile(opened.path), list(batches)
    reference = compare_litert_codes(file, progress(inputs))
    try:
        delegate = compare_delegate_codes(file, inputs)
    except TimeLimitError:
        raise
    except (KernelError, VerificationError):  # it fails on some files that LiteRT runs
        delegate = None
    return FileCheck(**vars(reference), self_test=self_test, delegate=delegate)


def compare_codes(path: Path, batches: Iterable[Sequence[Array]]) -> Exactness:
    """Compare the engine with LiteRT's reference kernels; see `ModelFile.compare_codes`."""
    return compare_litert_codes(TfliteFile(path), batches)
