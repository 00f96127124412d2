"""Folders whose weights are no float model."""

import os
from pathlib import Path

from qtool.frontends.huggingface.foreign_weights import check_float_weights, dequantized


def test_a_pipe_in_place_of_a_configuration_is_not_read(tmp_path: Path) -> None:
    for name in ("config.json", "quantize_config.json"):
        os.mkfifo(tmp_path / name)
    check_float_weights(tmp_path)


def test_weights_that_become_float_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    check_float_weights(tmp_path)
    assert dequantized({"quantization_config": {"quant_method": "fp8"}}) == "fp8"
    for other in ({}, {"quantization_config": None}, {"quantization_config": {"bits": 4}}):
        assert dequantized(other) is None
