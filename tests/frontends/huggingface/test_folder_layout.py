"""Where the files of a folder lie."""

from pathlib import Path

from qtool.frontends.huggingface.folder_layout import LAYOUTS, model_folder_of
from tests.named_cases import cases


@cases(
    "layout, part, mode, name",
    ("shared", "", "weight-only-int4", "onnx/model_q4.onnx"),
    ("transformers.js", "", "static", "onnx/model_quantized.onnx"),
    ("transformers.js", "decoder", "dynamic", "onnx/decoder_model_merged_quantized.onnx"),
    ("shared", "text", "static", "onnx/text_model_quantized.onnx"),
    ("transformers.js", "vision", "weight-only-int4", "onnx/vision_model_q4.onnx"),
    ("sentence-transformers", "", "static", "onnx/model.onnx"),
    ("optimum", "encoder", "static", "encoder_model.onnx"),
    ("genai", "", "weight-only-int4", "model.onnx"),
)
def test_names_of_files(layout: str, part: str, mode: str, name: str) -> None:
    assert LAYOUTS[layout].path(Path("out"), part, mode) == Path("out") / name


def test_the_folder_of_a_file(tmp_path: Path) -> None:
    inner = tmp_path / "onnx"
    inner.mkdir()
    assert model_folder_of(inner / "model.onnx") == inner
    (tmp_path / "config.json").write_text("{}")
    assert model_folder_of(inner / "model.onnx") == tmp_path
    assert model_folder_of(tmp_path / "model.onnx") == tmp_path
