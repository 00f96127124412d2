"""What qtool and transformers.js read of the files of a folder."""

from pathlib import Path

from qtool.frontends.huggingface.companion_files import read_records, write_record
from qtool.frontends.huggingface.model_card import MARK, sections_of

STATIC = {"mode": "static", "target": "onnxruntime-web"}
INT4 = {"mode": "weight-only-int4", "target": "onnxruntime-web"}


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
