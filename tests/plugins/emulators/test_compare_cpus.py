"""Comparisons with a processor that is this machine, and does something else on purpose."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.plugins.emulators.compare_cpus import prepare, run_on_cpus
from qtool.plugins.emulators.result import CpuResult
from tests.plugins.emulators.networks import (
    batches,
    by_onnxruntime,
    pretend,
)

# adds one to output {at}, wherever a model has it
ADD = """
file = outputs / f"{{batch}}-{at}.npy"
if file.exists() and stem in {stems}:
    values = np.load(file)
    values.flat[0] += 1
    np.save(file, values)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_onnxruntime(tmp_path_factory.mktemp("files") / "int8.onnx")


def compared(file: Path, cpu: object, timeout: float = 120) -> CpuResult:
    (found,) = run_on_cpus(file, [cpu], [[b.numpy()] for b in batches()], timeout)
    return found


def place_of(file: Path, op: str, folder: Path) -> int:
    """Which output of the probed file the first codes of an operator are."""
    case = prepare(file, [[b.numpy()] for b in batches()], folder)
    return next(case.place[c.tensor] for c in case.probes.codes if c.op == op)


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch folders are made; nobody else makes any there."""
    place = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_the_same_machine_is_identical(
    file: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compared(file, pretend(monkeypatch, tmp_path))
    assert found.identical
    assert (found.outputs, found.outputs_identical) == (40, 40)
    assert found.codes == found.codes_identical > 8000
    assert (found.sqnr_db, found.first, found.wrong_kernels) == (None, None, ())
    assert found.kernels >= 4
    assert (found.predictions, found.changed) == (8, 0)
    assert (found.cpu, found.runtime, found.undisturbed) == ("fake", "fake 1.0", True)
    assert found.remarks() == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("op", ["Conv", "Add"])
def test_a_wrong_kernel_is_named(
    op: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = place_of(file, op, tmp_path)
    body = ADD.format(at=at, stems=("forced",))
    found = compared(file, pretend(monkeypatch, tmp_path, body))
    assert not found.identical
    assert found.codes - found.codes_identical == 2  # one of each batch
    assert found.first is not None
    assert (found.first.op, found.first.float_nodes) == (op, ())
    assert found.wrong_kernels == (f"{found.first.node} ({op})",)
    (remark,) = found.remarks()
    assert f"1 of {found.kernels} integer kernels give other results for equal codes" in remark


def test_other_outputs_of_equal_codes(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = ADD.format(at=0, stems=("int8", "forced"))
    found = compared(file, pretend(monkeypatch, tmp_path, body))
    assert found.codes_identical == found.codes
    assert found.identical
    assert found.outputs_identical == 38
    assert found.sqnr_db is not None
    assert 0 <= found.changed <= 2
    assert "the outputs differ by the last bits of float nodes" in found.remarks()[0]


def test_codes_of_other_kernels_are_called_so(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file differs, its kernels on equal codes do not: nothing is shown by that."""
    found = compared(file, pretend(monkeypatch, tmp_path, ADD.format(at=0, stems=("int8",))))
    assert not found.undisturbed
    assert not found.identical
    assert "changes which kernels run" in found.remarks()[-1]


def test_a_float_island_is_not_a_wrong_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LayerNorm stands in float between two layers; what differs there is said to be float's."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    data = [torch.randn(16, 8)]
    file = tmp_path / "norm.onnx"
    qtool.quantize(net, data, accuracy="fast").export(file)
    case = prepare(file, [[data[0].numpy()]], tmp_path / "first")
    island = next(c for c in case.probes.codes if case.probes.float_nodes[c.tensor])
    assert any("LayerNormalization" in n for n in case.probes.float_nodes[island.tensor])
    body = ADD.format(at=case.place[island.tensor], stems=("forced",))
    cpu = pretend(monkeypatch, tmp_path, body)
    (found,) = run_on_cpus(file, [cpu], [[data[0].numpy()]])
    assert not found.identical
    assert found.first is not None
    assert found.first.tensor == island.tensor
    assert found.wrong_kernels == ()
    assert found.kernels > 0
    assert "the difference begins in float: " in found.remarks()[0]
    assert "LayerNormalization" in found.remarks()[0]


def test_a_kernel_that_gives_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes are equal: the last layer reads them, and its result is an output."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    x, file = torch.randn(16, 8), tmp_path / "norm.onnx"
    qtool.quantize(net, [x], accuracy="fast").export(file)
    body = ADD.format(at=0, stems=("norm", "forced"))
    (found,) = run_on_cpus(file, [pretend(monkeypatch, tmp_path, body)], [[x.numpy()]])
    assert found.codes_identical == found.codes
    assert found.kernels == 3
    assert len(found.wrong_kernels) == 1
    assert not found.identical
    assert "1 of 3 integer kernels give other results" in found.remarks()[0]


def test_dynamic_files_are_judged_by_their_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, x = tmp_path / "a.onnx", torch.randn(4, 8)
    qtool.quantize(nn.Linear(8, 4).eval(), [x], mode="dynamic", accuracy="fast").export(file)
    body = ADD.format(at=0, stems=("a", "forced"))
    (found,) = run_on_cpus(file, [pretend(monkeypatch, tmp_path, body)], [[x.numpy()]])
    assert found.hidden
    assert not found.identical
    assert "integers inside" in found.remarks()[0]
