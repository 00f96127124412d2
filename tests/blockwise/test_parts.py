"""The parts that are trained are recorded, so that a conversion of another block size has them."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import qtool
from qtool.algorithms.learned_scales import training
from qtool.blockwise.converted_blocks import changes_of
from qtool.core.errors import PlanError
from qtool.frontends.huggingface import meta_init
from tests.blockwise.test_by_blocks import BLOCK, Residual, content, filled, samples

ONE = 1 << 20  # bytes: a block has the whole network
PARTS = ["mul", "layers.1.norm", "layers.2.norm"]


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_init, "MIN_META_ELEMENTS", 1000)
    monkeypatch.setattr(training, "MAX_STEPS", 60)


def converted(folder: Path, path: Path, block: int, recipe: dict[str, Any]) -> Any:
    path.parent.mkdir()
    with qtool.init_empty_weights():
        model = Residual()
    return qtool.quantize_by_blocks(
        folder, samples(), path, model=model, block=block, recipe=recipe
    )


def recorded(path: Path) -> dict[str, Any]:
    """The recipe in a file."""
    properties = onnx.load(path, load_external_data=False).metadata_props
    recipe: dict[str, Any] = json.loads({p.key: p.value for p in properties}["qtool_recipe"])
    return recipe


@pytest.mark.parametrize("mode", ["weight-only-int4", "static"])
def test_a_recorded_partition_gives_the_same_bytes_with_any_memory(
    folder: Path, tmp_path: Path, mode: str
) -> None:
    recipe: dict[str, Any] = {"mode": mode, "recover": ["gptq", "learned-scales"]}
    first = tmp_path / "first" / "net.onnx"
    made = converted(folder, first, BLOCK, recipe)
    assert "learned-scales" in [c.step for c in changes_of(made.blocks)]
    assert recorded(first)["parts"] == PARTS
    again = tmp_path / "again" / "net.onnx"
    assert len(converted(folder, again, ONE, recorded(first)).blocks) == len(PARTS)
    assert content(again) == content(first)
    whole = tmp_path / "whole" / "net.onnx"
    assert len(converted(folder, whole, ONE, recipe).blocks) == 1
    assert recorded(whole)["parts"] == PARTS[:1]


@pytest.mark.parametrize(
    ("parts", "block", "said"),
    [
        (PARTS, 20_000, r"the part mul ... layers.0.down of the recipe has .* KiB of float32"),
        (PARTS[1:], BLOCK, r"begin with 'layers\.1\.norm', which is not where a part"),
        ([*PARTS[:1], "layers.7"], BLOCK, r"begin with 'layers\.7', which is not where a part"),
        ([PARTS[0], *PARTS[:0:-1]], BLOCK, r"begin with 'layers\.1\.norm', which is not where"),
        ([PARTS[0]] * 2, BLOCK, "it must be a list of different names"),
        ("stem", BLOCK, "parts is 'stem'; it must be a list"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    parts: Any, block: int, said: str, folder: Path, tmp_path: Path
) -> None:
    recipe = {"mode": "weight-only-int4", "recover": ["learned-scales"], "parts": parts}
    with pytest.raises(PlanError, match=said) as caught:
        converted(folder, tmp_path / "no" / "net.onnx", block, recipe)
    assert not list((tmp_path / "no").iterdir())
    if "must be a list" not in said:
        more = ["give more memory"] if "has" in said else []
        assert [r.text for r in caught.value.remedies] == [*more, "leave out parts"]


def test_in_memory_the_network_is_one_part_and_says_so(folder: Path) -> None:
    recipe = {"mode": "weight-only-int4", "recover": ["learned-scales"], "parts": PARTS}
    quantized = qtool.quantize(filled(folder), samples(), recipe=recipe)
    assert "the parts of the recipe are those of a conversion block by block" in str(quantized)
    assert quantized.plan.recipe.to_json()["parts"] == PARTS
