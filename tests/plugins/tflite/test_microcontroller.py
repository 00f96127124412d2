"""Kernels of microcontrollers, and what is refused for them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qtool.core.errors import ExportError
from qtool.plugins.tflite import microcontroller, tflm
from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor, to_bytes
from qtool.plugins.tflite.tflite_file import TfliteFile

OUTPUTS = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
RECORDED = {
    ("LOGISTIC", 3.725290298461914e-09, 3): "b376885ac8452b6cbf9ced81b1080bfd570d9b91",
    ("LOGISTIC", 6.103515625e-05, -128): "a677efb4aa4bdde3b00150d0055047c6041e4e42",
    ("LOGISTIC", 0.00390625, -128): "35547e98b21dfaf71a63faac47066ea1c359f118",
    ("LOGISTIC", 0.0078125, 0): "97546bdd29c492f996a1d25ef9a987e9c1ff3142",
    ("LOGISTIC", 0.03, 5): "171858c03fc8d33cb63130d54891d8edd428fd22",
    ("LOGISTIC", 0.0712, -20): "080239d9cd24f538bb31df21d8008550058d87e9",
    ("LOGISTIC", 0.25, 0): "0957217d40c6c7a192cc4d4308e9fafdd3aeb954",
    ("LOGISTIC", 1.0, 127): "6ad9207bda856d6181211743516cd91a1a876b27",
    ("LOGISTIC", 2.0, 0): "947dab56c40afb5f74ca9f99c50c7a2a8910d6d0",
    ("LOGISTIC", 4.0, 3): "cd3a9e9e920232dd964af80db1ea7cc1b4380f67",
    ("LOGISTIC", 71.1, -5): "240cc6f69b6526e16927fbcf052cc84d78e5f423",
    ("TANH", 3.725290298461914e-09, 3): "b376885ac8452b6cbf9ced81b1080bfd570d9b91",
    ("TANH", 6.103515625e-05, -128): "b8d78e05be8b9560a2f7781aa8678abfb40d49ac",
    ("TANH", 0.00390625, -128): "b1c4421e6da1349b39c855235c0a8aa4822cc06e",
    ("TANH", 0.0078125, 0): "b598e140111c1804fccccfaaf14b27fc2e46bd91",
    ("TANH", 0.03, 5): "1063c783f5bf233467742b4ea1ba4aec32eadeb9",
    ("TANH", 0.0712, -20): "87c77c7e4ff3f413fcf79c477b1889a87b8e931c",
    ("TANH", 0.25, 0): "1f86eeedd3ee7972b25d4940fb44089654f0a60d",
    ("TANH", 1.0, 127): "8eaf5a9de80d4d6354bb5038d1378fe3dd893f59",
    ("TANH", 2.0, 0): "9b6369c77ba2936904107eda4c72d190e156ad2d",
    ("TANH", 4.0, 3): "cd3a9e9e920232dd964af80db1ea7cc1b4380f67",
    ("TANH", 71.1, -5): "240cc6f69b6526e16927fbcf052cc84d78e5f423",
}
"""Operator, scale and zero point of the input -> SHA-1 of the results for all codes, recorded in
tflite-micro 0.dev20261023182759. At powers of two halves are rounded otherwise than by LiteRT."""


def one_operator(kind: str, scale: float, zero: int) -> Model:
    """The operator on 256 codes."""
    params = [
        Quantization(np.array([s], np.float32), np.array([z]))
        for s, z in ((scale, zero), OUTPUTS[kind])
    ]
    tensors = tuple(
        Tensor(n, "int8", (1, 256), quantization=p) for n, p in zip("xy", params, strict=True)
    )
    operators = (Operator(kind, (0,), (1,), {}, 2),)
    return Model(tensors, operators, (0,), (1,), names=PortNames(("x",), ("y",)))


@pytest.mark.parametrize(("kind", "scale", "zero"), RECORDED)
def test_the_codes_are_those_of_the_runtime(
    kind: str, scale: float, zero: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(to_bytes(one_operator(kind, scale, zero)))
    file, codes = TfliteFile(path), np.arange(-128, 128, dtype=np.int8)[None]
    (expected,) = file.engine_codes(file.program(tflm.PROFILE), [codes])
    assert hashlib.sha1(expected.tobytes()).hexdigest() == RECORDED[kind, scale, zero]  # no secret
    if tflm.version() is not None:
        assert (tflm.run(path, [codes])[0] == expected).all()


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (2.0**-29, r"scale is below 2\*\*-28"),
        (2.0**-28, None),
        (1 / 256, None),
        (1.0, None),
        (8.0, "scale is 8, where results saturate early, 12[78] codes off"),
        (71.1, "scale is 71.1, where results saturate early, 12[78] codes off"),
    ],
)
def test_scales_that_it_computes_wrongly_with_are_refused(
    kind: str, scale: float, message: str | None
) -> None:
    model = one_operator(kind, scale, 3)
    if message is None:
        microcontroller.check(model, {})
        return
    with pytest.raises(ExportError, match=message):
        microcontroller.check(model, {})


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("left in float by the recipe (rule 1: x)", "leave out that rule of 'recipe', or use"),
        ("it has no integer kernel", r"\(it has no integer kernel\), which .* replace it in the"),
        ("", "stays in float, which microcontrollers are not to compute; replace it in the model"),
    ],
)
def test_why_an_operator_is_in_float(reason: str, words: str) -> None:
    model = one_operator("LOGISTIC", 1 / 256, 3)
    index = model.operators[0].outputs[0]
    tensors = list(model.tensors)
    tensors[index] = replace(tensors[index], type="float32")
    model, name = replace(model, tensors=type(model.tensors)(tensors)), tensors[index].name
    with pytest.raises(ExportError, match=words):
        microcontroller.check(model, {name: reason})
