"""A format of files with its runtime, in one folder: nothing outside knows of it.

A .toy file is an ONNX file behind four bytes.
"""

from dataclasses import replace

import qtool
from qtool.backends.model_file import FileFormat
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.runtime import Arrays, Runtime
from qtool.planning.targets import TARGETS, Target
from tests.backends.toy.toy_file import (
    NAME,
    SUFFIX,
    ToyExport,
    ToyFile,
    is_toy,
    open_session,
    write_float,
)


def check_measurable(target: Target) -> None:
    """Every target runs here."""


def run_onnx(path: object, arrays: Arrays) -> list[object]:
    """Run an ONNX file."""
    return list(run(session(str(path)), arrays))


qtool.register_format(
    FileFormat(
        (NAME,), SUFFIX, is_toy, ToyFile, open_session, write_float, ToyExport, check_measurable
    )
)
qtool.register_runtime(Runtime("toy", "Toy", "onnxruntime", lambda: "1.0", run_onnx))
_FORM = replace(TARGETS["onnxruntime"].file, formats=("qdq", NAME))
qtool.register_target(
    replace(TARGETS["onnxruntime"], name="toy", description="a toy", runtime="toy", file=_FORM)
)
