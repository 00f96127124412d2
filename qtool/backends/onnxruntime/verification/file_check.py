"""The check of an ONNX file alone: its self-test, and the runtime against the integer engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from qtool.backends.onnxruntime.onnx_file import OnnxFile
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.portability import portability
from qtool.core.errors import KernelError, VerificationError
from qtool.core.types import Array, Progress
from qtool.verification import FileCheck


def verify(file: OnnxFile, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
    """Run the self-test of a file, and compare codes; see `ModelFile.verify`."""
    self_test = file.check_self_test()
    first = next(stream := iter(batches), None)
    stream = stream if first is None else chain([first], stream)
    try:
        comparison = compare_codes(file.path, progress(stream))
    except (KernelError, VerificationError) as error:
        if not self_test.present:
            raise
        return FileCheck(0, 0, 0, 0.0, None, 0, self_test=self_test, not_compared=str(error))
    other = "" if file.runs_here else str(file.target)
    elsewhere = None
    if not self_test.present and first is not None:
        exported, here = ExportedFile.of(file.path), comparison.profile
        elsewhere = portability(exported, here, first, portable=True)
    return FileCheck(
        **vars(comparison), self_test=self_test, other_target=other, portability=elsewhere
    )
