"""What qtool and transformers.js read of the files of a folder."""

from pathlib import Path

from qtool.frontends.huggingface.companion_files import read_records, write_record

STATIC = {"mode": "static", "target": "onnxruntime-web"}
INT4 = {"mode": "weight-only-int4", "target": "onnxruntime-web"}


def test_records_of_files_that_are_there(tmp_path: Path) -> None:
    assert read_records(tmp_path) == {}
    (tmp_path / "there.onnx").touch()
    write_record(tmp_path, {"there.onnx": STATIC, "gone.onnx": INT4})
    assert read_records(tmp_path) == {"there.onnx": STATIC}
    (tmp_path / "quantize_config.json").write_text('{"quantizer": "other", "files": {}}')
    assert read_records(tmp_path) == {}
