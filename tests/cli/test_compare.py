"""qtool compare: several files side by side."""

import json

from tests.cli.conftest import Cli

QUICK = ("--seconds", "0.01", "--batch-sizes", "4")
EVAL = ("--data", "examples/digits/eval.npz", "--labels", "labels")


def test_the_example_works(sample: Cli) -> None:
    words = sample.example_of("compare")
    for name in ("float.onnx", "other-tool.onnx"):
        (sample.folder / name).write_bytes((sample.folder / "digits.int8.onnx").read_bytes())
    message = sample(*words, *QUICK).stdout
    assert "  digits.int8  " in message
    assert "  other-tool   " in message
    found = json.loads((sample.folder / "compared" / "report.json").read_text())
    assert [m["name"] for m in found["models"]] == ["float", "digits.int8", "other-tool"]
    assert found["accuracy"]["models"][2]["agreement"]["value"] == 1.0


def test_a_file_that_is_named_twice_is_refused(sample: Cli) -> None:
    (sample.folder / "link.onnx").symlink_to("digits.int8.onnx")
    for other in ("digits.int8.onnx", "link.onnx"):
        message = sample.refuses("compare", "digits.int8.onnx", other, *EVAL)
        assert f"digits.int8.onnx and {other} are one file; name each file once" in message
    message = sample.refuses("merge", "digits.calib", "./digits.calib", "-o", "all.calib")
    assert "whose samples would count twice; name each file once" in message
