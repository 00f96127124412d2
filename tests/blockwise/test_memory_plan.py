"""Which models fit into memory, and the blocks of those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import torch
from qtool.cli.number_types import Bytes
from safetensors.torch import save_file

from qtool.blockwise.memory_plan import BLOCK, SMALLEST, WHOLE, block_size, whole_memory
from qtool.planning.recipe import Recipe
from tests.cli.float_onnx import write_float_onnx


def test_the_memory_of_a_whole_model(tmp_path: Path) -> None:
    assert whole_memory(Path("package.module:factory")) == 0
    assert whole_memory(tmp_path) == 0
    half = {"a": torch.zeros(10, 3, dtype=torch.bfloat16), "b": torch.zeros(7)}
    save_file(half, tmp_path / "model.safetensors")
    assert whole_memory(tmp_path) == 0  # weights alone are no model
    (tmp_path / "config.json").write_text("{}")
    assert whole_memory(tmp_path) == WHOLE * 4 * 37
    write_float_onnx(tmp_path)
    assert whole_memory(tmp_path / "float.onnx") > 0


def test_blocks_are_smaller_in_less_memory(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    plain, trained = Recipe(), Recipe(accuracy="best")
    assert block_size(path, None, plain) == block_size(path, 3 << 30, plain) == BLOCK
    assert block_size(path, 1 << 30, plain) == 1 << 26
    assert block_size(path, 1000, plain) == SMALLEST
    assert block_size(path, None, trained) == block_size(path, 4 << 30, trained) == BLOCK
    assert block_size(path, 3 << 30, trained) == 1 << 27
    assert block_size(path, 3 << 30, Recipe(recover=("learned-scales",))) == 1 << 27
    (tmp_path / "net.onnx.blocks").mkdir()
    (tmp_path / "net.onnx.blocks/start.json").write_text(json.dumps({"block": "12345"}))
    assert block_size(path, 3 << 30, trained) == 12345


@pytest.mark.parametrize(
    ("text", "size"), [("3GiB", 3 << 30), ("512M", 512 << 20), ("1.5 kb", 1536)]
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["much", "-1", "0", "3 XiB", "9" * 40])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as 512MiB or 3GiB"):
        Bytes().convert(text, None, None)
