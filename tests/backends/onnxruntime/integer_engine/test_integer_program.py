"""The executor: inputs, outputs, every tensor by name."""

from __future__ import annotations

import pytest
import torch

from qtool.backends.onnxruntime.integer_engine import lower
from qtool.core.errors import DataError
from tests.backends.onnx.export.networks import model, quantized, samples
from tests.backends.onnxruntime.integer_engine.labels import labelled_values


def test_the_quantized_model_gives_its_program() -> None:
    (x,) = samples("residual", 3)
    assert torch.equal(quantized("residual").integer()(x)[0], lower(model("residual"))(x)[0])


def test_tensors_are_found_by_the_names_of_the_model() -> None:
    (x,) = samples("concat", 2)
    found = labelled_values(lower(model("concat")), x)
    assert {"x", "cat"} <= set(found)
    assert found["cat"].dtype == torch.uint8
    assert found["cat"].shape == (2, 10, 8, 8)


def test_inputs_may_be_given_in_codes() -> None:
    program = lower(model("concat"))
    (x,) = samples("concat", 2)
    (step,) = (s for s in program.instructions if s.kind == "quantize")
    codes = program.params[step.output].quantize(x)
    assert codes.dtype == torch.uint8
    assert torch.equal(program(codes)[0], program(x)[0])


def test_quantized_outputs_are_codes_and_others_float() -> None:
    assert lower(model("concat"))(*samples("concat", 2))[0].dtype == torch.uint8
    assert lower(model("linear"))(*samples("linear", 2))[0].dtype == torch.float32


def test_nothing_is_kept_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lower(model("residual"))
    last = program._last_use()
    freed = [name for names in last.values() for name in names]
    assert len(freed) == len(set(freed))
    assert set(program.outputs).isdisjoint(freed)
    assert {s.output for s in program.instructions} - set(freed) == set(program.outputs)


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(DataError, match="takes 1 inputs, not 0: x"):
        lower(model("concat"))()
