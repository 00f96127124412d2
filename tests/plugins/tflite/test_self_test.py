"""The test that a TFLite file carries of itself: any changed bit is detected before LiteRT runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.self_test_format import KEY, MAX_BYTES, SelfTest
from qtool.core.errors import QtoolError
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.conversion_record import METADATA
from qtool.plugins.tflite.file import load, save
from qtool.plugins.tflite.self_test import check_self_test, with_self_test
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.verification import FileCheck
from tests.needs import needs_litert

pytestmark = needs_litert


def small(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(*layers, *more).eval()


def written(model: nn.Module, path: Path, target: str = "tflite", **options: str) -> Path:
    x = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    qtool.quantize(model, [x], target=target, accuracy="fast").export(path, timing=0, **options)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(small(), tmp_path_factory.mktemp("file") / "model.tflite")


CASES = {
    "float interface": {},
    "codes": {"interface": "int8"},
    "as in PyTorch": {"layout": "nchw"},
    "microcontroller": {"target": "tflite-micro"},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_fresh_file_passes(options: dict[str, str], tmp_path: Path) -> None:
    check = qtool.verify(written(small(), tmp_path / "model.tflite", **options), samples=8)
    assert check.passed
    assert check.self_test.unmodified
    assert check.self_test.profile == litert.reference_profile()
    assert (check.self_test.tensors, check.self_test.identical) == (1, 1)
    assert check.summary("m").text == "verified"


def test_outputs_behind_float_operators_are_not_compared(tmp_path: Path) -> None:
    """ERF has no integer kernel: LiteRT computes it."""
    path = written(small(nn.LayerNorm(4)), tmp_path / "model.tflite")
    check = check_self_test(TfliteFile(path))
    assert (check.passed, check.tensors) == (True, 0)


def test_the_test_is_small_and_the_bytes_are_the_same_again(file: Path, tmp_path: Path) -> None:
    entry = load(file).metadata[KEY]
    assert len(entry) < min(400, MAX_BYTES)
    again = written(small(), tmp_path / "model.tflite")
    assert again.read_bytes() == file.read_bytes()
    assert with_self_test(load(file), SelfTest.read(entry.decode())) == file.read_bytes()


def outcome(data: bytes, path: Path) -> FileCheck | None:
    """Verify bytes; None where the file is refused."""
    path.write_bytes(data)
    try:
        return qtool.verify(path, samples=4)
    except QtoolError:
        return None


def test_every_flipped_bit_is_detected(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 files with one to four flips none passes, and LiteRT, which may hang, runs none."""
    monkeypatch.setattr(litert._RUNNER, "call", lambda *_: pytest.fail("LiteRT ran"))
    data, draw = file.read_bytes(), np.random.default_rng(0)
    for number in range(60):
        flipped = bytearray(data)
        for bit in draw.choice(8 * len(data), 1 + number % 4, replace=False).tolist():
            flipped[bit // 8] ^= 1 << bit % 8
        check = outcome(bytes(flipped), tmp_path / "flipped.tflite")
        assert check is None or not check.passed
        assert check is None or check.summary("m").text == "not verified"


def test_each_bit_of_the_entries_and_their_names_counts(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    entry = load(file).metadata[KEY]
    places = [data.index(KEY.encode()), data.index(entry), data.index(entry) + len(entry) - 2]
    about = load(file).metadata[METADATA]
    for at in (*places, data.index(about) + 3, data.index(entry) + entry.index(b"content") + 12):
        flipped = bytearray(data)
        flipped[at] ^= 1
        check = outcome(bytes(flipped), tmp_path / "flipped.tflite")
        assert check.self_test.unmodified is False
        assert "modified since" in str(check) or "missing" in str(check)


def test_lost_metadata_is_damage(file: Path, tmp_path: Path) -> None:
    model, path = load(file), tmp_path / "model.tflite"
    for left in ({}, {METADATA: model.metadata[METADATA]}):
        save(replace(model, metadata=left), path)
        check = qtool.verify(path, samples=4)
        assert not check.passed
        assert "the self-test in the file's metadata is missing" in str(check)


def test_a_file_of_another_tool_needs_none(file: Path, tmp_path: Path) -> None:
    save(replace(load(file), metadata={}, description="other"), tmp_path / "model.tflite")
    check = qtool.verify(tmp_path / "model.tflite", samples=4)
    assert check.passed
    assert "none in this file" in str(check)


def test_other_expected_codes_fail(file: Path, tmp_path: Path) -> None:
    """A file that was signed with the codes of other kernels."""
    test = SelfTest.read(load(file).metadata[KEY].decode())
    wrong = replace(test, digests=dict.fromkeys(test.digests, ("0" * 16,)))
    path = tmp_path / "model.tflite"
    path.write_bytes(with_self_test(load(file), wrong))
    check = qtool.verify(path, samples=4)
    assert (check.self_test.unmodified, check.passed) == (True, False)
    assert "the first difference is in output" in str(check)
