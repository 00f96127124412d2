"""The test that a file carries of itself: passes where nothing changed, names what did."""

import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import qtool
from benchmarks.self_test import Flip, drawn, judged
from qtool.backends.onnx.content_digest import content_digest
from qtool.backends.onnx.self_test_format import MAX_BYTES, InputSpec, SelfTest, attach
from qtool.backends.onnxruntime.self_test import run as run_self_test
from qtool.backends.onnxruntime.self_test.inputs import generate, random_words
from qtool.backends.onnxruntime.self_test.run import check_self_test
from qtool.backends.onnxruntime.self_test_creation import make_self_test
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.core.errors import VerificationError
from tests.needs import needs_vnni

KEY = "qtool_self_test"


class Attentive(nn.Module):
    """An embedding, a norm and a layer: all codes are behind nodes in float."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.norm(self.table(ids))), -1)


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


@pytest.fixture(scope="module")
def quantized() -> qtool.QuantizedModel:
    return qtool.quantize(small(), [torch.randn(8, 3, 12, 12)], accuracy="fast")


@pytest.fixture(scope="module")
def attentive() -> qtool.QuantizedModel:
    torch.manual_seed(0)
    ids = torch.arange(48).reshape(4, 12)
    return qtool.quantize(Attentive().eval(), [ids], accuracy="fast", dynamic={"ids": {0: "n"}})


@pytest.fixture(scope="module")
def content(quantized: qtool.QuantizedModel, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "model.onnx"
    quantized.export(path, timing=0)
    return path.read_bytes()


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(content)
    return tmp_path / "model.onnx"


def test_the_generator_is_splitmix64() -> None:
    """The first words of seed 0 as the reference implementation prints them."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert random_words(0, np.arange(3)).tolist() == expected


def test_generated_inputs_never_change() -> None:
    """Files in use hold digests of what these give."""
    spec = InputSpec((2, 1, 2, 2), -12, 267, 0.5)
    first = generate("x", spec, np.dtype(np.float32), 0)
    assert first.dtype == np.float32
    assert first[1].reshape(-1).tolist() == [first[1, 0, 0, 0]] * 4  # one block of 2 x 2
    assert (first / 0.5).astype(int).reshape(-1).tolist() == [
        _code(place) for place in (0, 1, 2, 3, 4, 4, 4, 4)
    ]
    again = generate("x", InputSpec((1, 1, 2, 2), -12, 267, 0.5), np.dtype(np.float32), 1)
    assert np.array_equal(again[0], first[1])  # samples do not depend on the size of a batch
    ids = generate("ids", InputSpec((1, 64), 3, 9), np.dtype(np.int64), 0)
    assert (ids.min(), ids.max()) == (3, 9)


def _code(place: int) -> int:
    """Written from docs/numerics.md, without numpy: input "x", codes from -12 to 267."""
    state = int.from_bytes(hashlib.sha256(b"x").digest()[:8], "little")
    z = (state + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return -12 + (z ^ z >> 31) % 280


@needs_vnni
def test_a_file_passes_its_own_test(file: Path) -> None:
    found = qtool.verify(file)
    assert found.passed
    assert found.self_test.unmodified
    assert found.self_test.exact
    assert (found.self_test.tensors, found.self_test.profile) == (6, "onnxruntime-x64")
    assert "all 6 integer tensors as planned (onnxruntime-x64)" in str(found)
    assert found.to_json()["self_test"]["passed"]
    assert "6 integer tensors" in str(qtool.inspect(file))


@pytest.mark.parametrize("target", ["onnxruntime-arm", "tflite", "openvino", "qnn"])
def test_files_of_other_targets_pass(target: str, tmp_path: Path) -> None:
    quantized = qtool.quantize(small(), [torch.randn(8, 3, 12, 12)], target=target, accuracy="fast")
    quantized.export(tmp_path / "model.onnx", timing=0)
    assert check_self_test(tmp_path / "model.onnx").passed


def test_the_qoperator_form_passes(quantized: qtool.QuantizedModel, tmp_path: Path) -> None:
    quantized.export(tmp_path / "model.onnx", format="qoperator", timing=0)
    found = qtool.verify(tmp_path / "model.onnx")
    assert found.passed
    assert found.self_test.tensors == 5
    assert "operator of the QOperator format" in found.not_compared


def test_bytes_and_content_are_the_same_each_time(
    quantized: qtool.QuantizedModel, file: Path, tmp_path: Path
) -> None:
    quantized.export(tmp_path / "again.onnx", timing=0)
    assert (tmp_path / "again.onnx").read_bytes() == file.read_bytes()
    quantized.export(tmp_path / "apart.onnx", external_data=True, timing=0)
    assert check_self_test(tmp_path / "apart.onnx").passed


def _note(model: onnx.ModelProto) -> None:
    model.metadata_props.add(key="note", value="of the user's")


def _other_note(model: onnx.ModelProto) -> None:
    next(p for p in model.metadata_props if p.key == "qtool_plan").value += "0"


def _producer(model: onnx.ModelProto) -> None:
    model.producer_name = "another"


def _key(model: onnx.ModelProto) -> None:
    next(p for p in model.metadata_props if p.key == KEY).key = "qtool_self_tesu"


def _runs(model: onnx.ModelProto) -> None:
    entry = next(p for p in model.metadata_props if p.key == KEY)
    entry.value = entry.value.replace('"runs":', '"runs":1')


@pytest.mark.parametrize("change", [_note, _other_note, _producer, _key, _runs])
def test_metadata_is_content(
    change: Callable[[onnx.ModelProto], None], file: Path, tmp_path: Path
) -> None:
    model = onnx.load(file)
    change(model)
    onnx.save(model, tmp_path / "other.onnx")
    assert check_self_test(tmp_path / "other.onnx").unmodified is False


def _larger_scale(model: onnx.ModelProto) -> None:
    stored = next(i for i in model.graph.initializer if i.name == "3.scale")
    changed = np.nextafter(numpy_helper.to_array(stored), np.float32(9))
    stored.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), stored.name))


def _other_attribute(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Conv")
    next(a for a in node.attribute if a.name == "strides").ints[:] = [2, 2]


def _node_less(model: onnx.ModelProto) -> None:
    del model.graph.node[-1]


@pytest.mark.parametrize("change", [_larger_scale, _other_attribute, _node_less])
def test_any_change_is_named(
    change: Callable[[onnx.ModelProto], None], file: Path, tmp_path: Path
) -> None:
    model = onnx.load(file)
    change(model)
    onnx.save(model, tmp_path / "other.onnx")
    found = check_self_test(tmp_path / "other.onnx")
    assert found.unmodified is False
    assert not found.passed
    assert "modified since qtool wrote it" in str(found)


def test_the_first_other_tensor_is_named(file: Path, tmp_path: Path) -> None:
    weight = next(t for t in onnx.load(file).graph.initializer if t.name == "2.weight.codes")
    Flip("2.weight.codes", (1,) * len(weight.dims), 6).written(file, tmp_path / "other.onnx")
    found = check_self_test(tmp_path / "other.onnx")
    assert found.first == ("3",)
    assert 0 < found.identical < found.tensors
    assert "the first difference is in 3. The file was modified" in str(found)


def test_flipped_bits_change_codes_or_are_explained(file: Path) -> None:
    kinds = judged(file, drawn(file, 40, np.random.default_rng(0)))
    assert "unexplained" not in kinds
    assert kinds.count("detected") >= 30


def test_files_that_saturate_elsewhere_say_so(tmp_path: Path) -> None:
    quantized = qtool.quantize(
        small(), [torch.randn(8, 3, 12, 12)], target="onnxruntime-x86-vnni", accuracy="fast"
    )
    quantized.export(tmp_path / "model.onnx", timing=0)
    test = SelfTest.of(onnx.load(tmp_path / "model.onnx"))
    assert test.digests["onnxruntime-avx2"] != test.digests["onnxruntime-x64"]
    found = check_self_test(tmp_path / "model.onnx")
    assert found.passed
    assert found.unlike
    assert "these codes differ from those on onnxruntime-" in str(found)


@needs_vnni
def test_another_cpu_is_told_from_a_modified_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(file)
    test = SelfTest.of(model)
    digests = test.digests["onnxruntime-x64"]
    other = ("0" * 16, *digests[1:])
    printed = {"onnxruntime-x64": other, "onnxruntime-other": digests}
    _with_test(model, replace(test, digests=printed), tmp_path / "two.onnx")
    found = check_self_test(tmp_path / "two.onnx")
    assert (found.identical, found.other) == (5, "onnxruntime-other")
    assert "first difference is in input." in str(found)
    assert "The codes match those of onnxruntime-other" in str(found)
    assert "convert for a target that fits this CPU" in str(found)
    monkeypatch.setattr(run_self_test, "machine_profile", lambda: "onnxruntime-unknown")
    found = check_self_test(tmp_path / "two.onnx")  # one that fits will do
    assert (found.passed, found.profile) == (True, "onnxruntime-other")
    _with_test(model, replace(test, digests={"onnxruntime-x64": other}), tmp_path / "two.onnx")
    found = check_self_test(tmp_path / "two.onnx")
    assert (found.passed, found.profile) == (True, "")
    assert "no codes to compare on this CPU" in str(found)


def _with_test(model: onnx.ModelProto, test: SelfTest, path: Path) -> None:
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    kept = [p for p in bare.metadata_props if p.key != KEY]
    del bare.metadata_props[:]
    bare.metadata_props.extend(kept)
    onnx.save(bare, path)
    attach(path, test)


def test_codes_behind_float_nodes_are_not_compared(
    attentive: qtool.QuantizedModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    attentive.export(path, timing=0)
    found = check_self_test(path)
    assert (found.passed, found.tensors) == (True, 0)
    assert "no codes to compare on this CPU" in str(found)


def test_sketches_of_former_files_are_passed_over(file: Path, tmp_path: Path) -> None:
    """Format 2 had approximate tensors, with a sketch of each."""
    model = onnx.load(file)
    entry = next(p for p in model.metadata_props if p.key == KEY)
    former = json.loads(entry.value) | {"format": 2, "sketches": [[6, "AAAA"]], "limit_db": 20.0}
    former["kinds"][-1][0] = "a"
    former["digests"] = []
    entry.value = json.dumps(former, separators=(",", ":"))
    path = tmp_path / "former.onnx"
    onnx.save(model, path)
    entry.value = entry.value.replace(former["content"], content_digest(path))
    onnx.save(model, path)
    assert check_self_test(path).passed


def test_a_test_fits_into_its_place(
    quantized: qtool.QuantizedModel, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_file, sample = ExportedFile(file), [np.zeros((4, 3, 12, 12), np.float32)]
    whole = make_self_test(onnx_file, sample)
    assert len(whole.text()) < MAX_BYTES
    self_test = importlib.import_module("qtool.backends.onnxruntime.self_test_creation")
    monkeypatch.setattr(self_test, "MAX_BYTES", len(whole.text()) - 20)
    folded = make_self_test(onnx_file, sample)
    assert len(folded.digests["onnxruntime-x64"]) < len(whole.digests["onnxruntime-x64"])
    monkeypatch.setattr(self_test, "MAX_BYTES", 10)
    assert "more than 10 bytes" in make_self_test(onnx_file, sample).missing


def test_why_there_is_no_test(file: Path, tmp_path: Path) -> None:
    model = onnx.load(file)
    (entry,) = (p for p in model.metadata_props if p.key == KEY)
    entry.value = SelfTest("", missing="it is not run whole").text()
    onnx.save(model, tmp_path / "other.onnx")
    assert str(check_self_test(tmp_path / "other.onnx")) == (
        "self-test: none in this file: it is not run whole"
    )
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    found = check_self_test(tmp_path / "other.onnx")
    assert (found.passed, str(found)) == (True, "self-test: none in this file")
    wrong_sizes = [np.zeros((4, 2, 12, 12), np.float32)]
    found_test = make_self_test(ExportedFile(file), wrong_sizes)
    assert found_test.missing == "it does not run on generated inputs"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 9}',
        '{"format":2,"content":"","runs":9999999,"inputs":[],"kinds":[],"digests":[]}',
        '{"format":2,"content":"","runs":1,"inputs":[[[9,999999999],0,1,1]],"kinds":[]}',
        '{"format":2,"content":"","runs":1,"inputs":[[[9],1e999,1,1]],"kinds":[],"digests":[]}',
        '{"format":2,"content":"","runs":1,"inputs":[[[-1,-9],0,1,1]],"kinds":[],"digests":[]}',
    ],
)
def test_a_damaged_test_is_said(text: str, file: Path, tmp_path: Path) -> None:
    model = onnx.load(file)
    next(p for p in model.metadata_props if p.key == KEY).value = text
    with pytest.raises(VerificationError, match=r"is damaged|has format 9"):
        SelfTest.of(model)
    onnx.save(model, tmp_path / "other.onnx")
    found = check_self_test(tmp_path / "other.onnx")
    assert not found.passed
    assert "self-test in the file" in str(found)
    assert "self-test in the file" in str(qtool.inspect(tmp_path / "other.onnx"))
