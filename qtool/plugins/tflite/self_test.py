"""The self-test of a TFLite file: a digest of all its bytes, and expected outputs.

It has the format of that in an ONNX file (docs/numerics.md), in the metadata `qtool_self_test`. The
observed tensors are the outputs as the file has them, of LiteRT's reference kernels; inputs are in
the layout of the network. The digest is the SHA-256 of the whole file, with zeros for its own
digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qtool.backends.onnx.content_digest import DIGITS, blank
from qtool.backends.onnx.self_test_format import KEY, SelfTest
from qtool.backends.onnxruntime.self_test.inputs import generate
from qtool.backends.onnxruntime.self_test.run import compare_results
from qtool.core.errors import VerificationError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.conversion_record import DESCRIPTION, METADATA, read_metadata
from qtool.plugins.tflite.file import Model, to_bytes
from qtool.plugins.tflite.litert_file import LitertFile
from qtool.verification.self_check import SelfCheck

_CARRIES = "self_test"
"""Key of the metadata of qtool: the file has a self-test, which may be lost by damage."""
_BLANK = "0" * DIGITS


def with_self_test(model: Model, test: SelfTest) -> bytes:
    """Return the bytes of a file that carries a self-test, with its digest."""
    about = {**read_metadata(model), _CARRIES: True}
    entries = {
        **model.metadata,
        METADATA: json.dumps(about).encode(),
        KEY: replace(test, content=_BLANK).text().encode(),
    }
    data = to_bytes(replace(model, metadata=entries))
    digest = content_digest(data, entries[KEY]).encode()
    return data.replace(entries[KEY], entries[KEY].replace(_BLANK.encode(), digest, 1), 1)


def content_digest(data: bytes, entry: bytes) -> str:
    """Return the digest of the bytes of a file, 32 hexadecimal digits.

    Args:
        data: the file.
        entry: its self-test, the digits of which count as zeros.
    """
    zeros = blank(entry.decode("latin-1")).encode("latin-1")  # bytes as they are
    return hashlib.sha256(data.replace(entry, zeros, 1)).hexdigest()[:DIGITS]


def read_self_test(file: LitertFile) -> SelfTest | None:
    """Return the self-test in a file, None without one.

    Raises:
        VerificationError: it is damaged, or missing although the file had one.
    """
    entry, about = file.model.metadata.get(KEY), file.metadata
    if entry is not None:
        return SelfTest.read(entry.decode("utf-8", "replace"))
    if about.get(_CARRIES) or (not about and file.model.description == DESCRIPTION):
        raise VerificationError(
            "the self-test in the file's metadata is missing",
            OtherFile("take a fresh copy of the file"),
            OtherFile("convert again"),
        )
    return None


def check_self_test(file: LitertFile) -> SelfCheck:
    """Run the self-test of a file; LiteRT runs it only if the file is unmodified."""
    try:
        test = read_self_test(file)
    except VerificationError as error:
        return SelfCheck(present=True, unmodified=False, failure=str(error))
    if test is None:
        return SelfCheck()
    unmodified = content_digest(file.path.read_bytes(), file.model.metadata[KEY]) == test.content
    check = SelfCheck(not test.missing, test.missing, unmodified=unmodified)
    if test.missing or not unmodified:
        return check
    try:
        runs = [file.codes(inputs) for inputs in generated_inputs(file, test)]
        names = [p.name for p in file.outputs]
        return compare_results(check, test, names, runs, litert.reference_profile())
    except VerificationError as error:
        return replace(check, failure=f"cannot be run ({error})")


def generated_inputs(file: LitertFile, test: SelfTest) -> Iterator[list[Array]]:
    """Iterate over the inputs of each run."""
    ports = file.inputs
    if len(ports) != len(test.inputs):
        raise VerificationError(
            f"the file has {len(ports)} inputs, its self-test {len(test.inputs)}"
        )
    dtypes = [np.dtype("float32" if p.params is not None else p.dtype) for p in ports]
    for number in range(test.runs):
        yield [
            generate(port.name, spec, dtype, number)
            for port, spec, dtype in zip(ports, test.inputs, dtypes, strict=True)
        ]
