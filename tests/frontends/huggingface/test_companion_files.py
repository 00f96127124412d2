"""Other tools find a model's configuration and tokenizer next to its file."""

import json
from pathlib import Path

import pytest

from qtool.frontends.huggingface.companion_files import (
    is_transformers_folder,
    write_companions,
)
from qtool.frontends.huggingface.folder_layout import LAYOUTS
from tests.named_cases import cases

library = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "bert"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "bert"}')
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"weights")
    return source


def test_configuration_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "bert.onnx"
    target.parent.mkdir()
    assert write_companions(None, folder, target) == []
    assert write_companions(None, folder, target) == []
    assert {p.name for p in target.parent.iterdir()} == {"config.json", "tokenizer.json"}
    other = target.with_name("config.json")
    other.write_text("another model's")
    assert write_companions(None, folder, target) == [other]
    assert other.read_text() == "another model's"
    assert write_companions(None, folder, folder / "bert.onnx") == []


def test_configuration_for_transformers_js(folder: Path, tmp_path: Path) -> None:
    out, layout = tmp_path / "out", LAYOUTS["shared"]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    for mode, dtype in (("static", "q8"), ("weight-only-int4", "q4")):  # written again
        path = layout.path(out, "", mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        assert write_companions(None, folder, path, layout, out, mode) == []
        config = json.loads((out / "config.json").read_text())
        assert config == {"model_type": "bert", "transformers.js_config": {"dtype": dtype}}
    assert (out / "1_Pooling" / "config.json").read_text() == "{}"


@cases(
    "text, expected",
    ('{"model_type": "bert"}', True),
    (json.dumps({"architecture": "resnet18"}), False),
    ("[", False),
)
def test_folders_of_transformers(tmp_path: Path, text: str, expected: bool) -> None:
    assert not is_transformers_folder(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert is_transformers_folder(tmp_path) is expected
