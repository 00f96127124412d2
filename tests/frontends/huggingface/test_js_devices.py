"""Which file transformers.js loads on which device."""

from pathlib import Path
from typing import Any

from qtool.frontends.huggingface.companion_files import read_records, write_record
from qtool.frontends.huggingface.folder_layout import (
    GPU_TARGET,
    LAYOUTS,
    WASM,
    WEB_TARGET,
    WEBGPU,
    config,
    file_for,
    same_part,
)
from qtool.frontends.huggingface.model_card import MARK, sections_of
from tests.named_cases import cases

STATIC = {"mode": "static", "target": WEB_TARGET}
INT4 = {"mode": "weight-only-int4", "target": GPU_TARGET}
INT8 = {"mode": "weight-only", "target": GPU_TARGET}


@cases(
    "rows, expected",
    ([STATIC], {"dtype": "q8"}),
    ([INT4], {"dtype": "q4"}),
    ([STATIC, INT4], {"dtype": "q8", "device_config": {"webgpu": {"dtype": "q4"}}}),
    ([INT8, STATIC], {"dtype": "q8", "device_config": {"webgpu": {"dtype": "int8"}}}),
    ([{"mode": "dynamic", "target": "onnxruntime"}], {"dtype": "q8"}),
)
def test_each_device_has_its_dtype(rows: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    folder, layout = Path("out"), LAYOUTS["transformers.js"]
    files = {layout.path(folder, "", **row).relative_to(folder).as_posix(): row for row in rows}
    assert config(files) == expected


def test_the_newest_file_for_a_device() -> None:
    older = {"mode": "weight-only-int4", "target": "onnxruntime"}
    files = {"onnx/model_q4.onnx": older, "onnx/model_quantized.onnx": STATIC}
    assert file_for(WASM, files) == "onnx/model_quantized.onnx"
    assert file_for(WEBGPU, files) == "onnx/model_quantized.onnx"
    assert file_for(WEBGPU, files | {"onnx/model_int8.onnx": INT8}) == "onnx/model_int8.onnx"


def test_parts_of_a_model_are_apart() -> None:
    files = {
        "onnx/encoder_model_quantized.onnx": STATIC,
        "onnx/decoder_model_merged_quantized.onnx": STATIC,
        "onnx/encoder_model_q4.onnx": INT4,
    }
    encoder = same_part("onnx/encoder_model_q4.onnx", files)
    assert set(encoder) == {"onnx/encoder_model_quantized.onnx", "onnx/encoder_model_q4.onnx"}


def test_records_of_files_that_are_there(tmp_path: Path) -> None:
    assert read_records(tmp_path) == {}
    (tmp_path / "there.onnx").touch()
    write_record(tmp_path, {"there.onnx": STATIC, "gone.onnx": INT4})
    assert read_records(tmp_path) == {"there.onnx": STATIC}
    (tmp_path / "quantize_config.json").write_text('{"quantizer": "other", "files": {}}')
    assert read_records(tmp_path) == {}


def test_sections_of_a_card() -> None:
    card = f"{MARK}\n\n# m\n\n## a.onnx\n\nint8.\n\n## b.onnx\n\nint4.\n\n## Use\n\ncode\n"
    assert sections_of(card) == {"a.onnx": "## a.onnx\n\nint8.\n", "b.onnx": "## b.onnx\n\nint4.\n"}
    assert sections_of("## a.onnx\n") == {}
