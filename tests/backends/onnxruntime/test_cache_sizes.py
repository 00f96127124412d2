"""Sizes of a cache that genai_config.json has and the file has not."""

import json
from pathlib import Path

import pytest

from qtool.backends.onnxruntime.session import with_cache_sizes

NAMED = ("batch", "heads", "past", "width")
SIZES = {"num_key_value_heads": 2, "head_size": 64}


@pytest.mark.parametrize(
    ("config", "name", "shape", "expected"),
    [
        ({"model": {"decoder": SIZES}}, "past_key_values.0.key", NAMED, ("batch", 2, "past", 64)),
        ({"model": {"decoder": SIZES}}, "past.0", ("b", 3, "t", "w"), ("b", 3, "t", 64)),
        ({"model": {"decoder": SIZES}}, "x", NAMED, NAMED),
        ({"model": {"decoder": {}}}, "past.0", NAMED, NAMED),
        ({"model": {"decoder": dict.fromkeys(SIZES, "?")}}, "past.0", NAMED, NAMED),
        ([], "past.0", NAMED, NAMED),
        (None, "past.0", NAMED, NAMED),
    ],
)
def test_sizes(config: object, name: str, shape: tuple, expected: tuple, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "genai_config.json").write_text(json.dumps(config))
    assert with_cache_sizes(tmp_path / "model.onnx", name, shape) == expected
