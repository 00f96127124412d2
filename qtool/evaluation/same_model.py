"""Whether a captured float model is the one that a file was made from."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.formats import open_file
from qtool.backends.onnx.origin import present_versions
from qtool.core.errors import VerificationError
from qtool.core.graph.fingerprint import float_arrays, weights_digest
from qtool.core.log import log_warning
from qtool.evaluation.same_weights import OTHER_WEIGHTS, check_same_weights
from qtool.frontends.captured_model import Captured
from qtool.frontends.own_models import FileNetwork


def check_same_model(file: str | Path, captured: Captured, model: object) -> None:
    """Check that a file was made from the weights of a float model.

    Next to the weights, the digest in the record of a file is compared. It is proof where the
    same torch captured a model of torch; of others it is a warning where no weight is comparable.

    Args:
        file: the quantized file.
        captured: the float model.
        model: what it was captured from.

    Raises:
        VerificationError: it was not.
    """
    module, opened = captured.graph.module, open_file(file)
    conversion = opened.conversion()
    origin = None if conversion is None else conversion.info.origin
    if origin is not None and origin.weights == (own := weights_digest(module)):
        return
    name = "the float model" if captured.file is None else captured.file.name
    compared = check_same_weights(opened, float_arrays(module), name)
    if origin is None or not origin.weights:
        return
    text = (
        f"{opened.path.name} was made from a model with other weights (digest {origin.weights}, "
        f"this model's is {own})"
    )
    same_torch = origin.versions.get("torch") == present_versions()["torch"]
    if same_torch and not isinstance(model, FileNetwork):
        raise VerificationError(text, *OTHER_WEIGHTS)
    if not compared.layers:
        log_warning(text)
