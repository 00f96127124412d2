"""Whether a float model is the one that a file was made from."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.onnx.origin import present_versions
from qtool.backends.table import open_file
from qtool.core.errors import VerificationError
from qtool.core.graph.fingerprint import weights_digest
from qtool.core.log import log_warning
from qtool.core.remedies import Argument, OtherFile
from qtool.frontends.captured_model import Captured
from qtool.frontends.onnx import OnnxModule


def check_same_model(file: str | Path, captured: Captured, model: object) -> None:
    """Check that the weights of a float model are those in the record of a file.

    Files of other tools, and those converted block by block, have no such record. There is only a
    warning where the same model may have other constants: captured by another torch, or read from
    an ONNX file, whose exporter folds and transposes weights.

    Args:
        file: the quantized file.
        captured: the float model.
        model: what it was captured from.

    Raises:
        VerificationError: they are not.
    """
    conversion = open_file(file).conversion()
    origin = None if conversion is None else conversion.info.origin
    if origin is None or not origin.weights:
        return
    own = weights_digest(captured.graph.module)
    if own == origin.weights:
        return
    text = (
        f"{Path(file).name} was made from a model with other weights (digest {origin.weights}, "
        f"this model's is {own})"
    )
    same_torch = origin.versions.get("torch") == present_versions()["torch"]
    if same_torch and not isinstance(model, OnnxModule):
        raise VerificationError(
            text,
            OtherFile("give that model and its weights"),
            Argument("--other-model", text="compare with this one anyway with {}"),
        )
    log_warning(text)
