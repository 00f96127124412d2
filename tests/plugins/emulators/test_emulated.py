"""Real emulators, where they are installed. docs/emulators.md says how."""

from pathlib import Path

import pytest
from onnxruntime.quantization import QuantFormat, QuantType

import qtool
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.plugins.emulators.available import problems
from qtool.plugins.emulators.cpus import CPUS
from qtool.plugins.emulators.result import CpuResult
from tests.plugins.emulators.networks import batches, by_onnxruntime, by_qtool

_MISSING = [name for name, why in problems().items() if why]
SKIP = "some processors cannot be emulated here: see docs/emulators.md"


def cpu_named(name: str, is_quick: bool = True) -> object:
    marks = [pytest.mark.skipif(name in _MISSING, reason=SKIP)]
    return pytest.param(name, marks=marks if is_quick else [*marks, pytest.mark.matrix])


QUICK = ("neoverse-n1", "wasm")
"""Processors whose emulators are quick; the others are in `matrix`."""

SATURATES_HERE = machine_profile() == "onnxruntime-avx2"
"""Whether pairs of products saturate on this machine, with which all processors are compared."""

UNLIKE_HERE = "nehalem" if SATURATES_HERE else "haswell"
"""A processor on which they do where they do not here, and the other way round."""

needs_unlike = pytest.mark.skipif(UNLIKE_HERE in _MISSING, reason=SKIP)


def on(file: Path, name: str) -> CpuResult:
    (found,) = qtool.verify_on(file, name, batches()).results
    return found


@pytest.fixture(scope="module")
def saturating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_qtool(tmp_path_factory.mktemp("files") / "vnni.onnx")


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_qtool(tmp_path_factory.mktemp("files") / "safe.onnx", "onnxruntime")


@pytest.mark.matrix
@needs_unlike
def test_pairs_of_products_saturate_with_avx2_alone(saturating: Path) -> None:
    found = on(saturating, UNLIKE_HERE)
    assert not found.identical
    assert found.first is not None
    assert (found.first.node, found.first.op, found.first.float_nodes) == ("first", "Conv", ())
    assert found.wrong_kernels[0] == "first (Conv)"
    assert found.sqnr_db is not None
    assert found.sqnr_db < 30
    assert found.undisturbed


@pytest.mark.parametrize("name", [cpu_named(name, name in QUICK) for name in CPUS])
def test_what_cannot_saturate_is_equal(name: str, safe: Path) -> None:
    found = on(safe, name)
    assert found.identical, str(found)
    assert (found.outputs_identical, found.codes > 8000) == (found.outputs, True)
    assert found.sqnr_db is None


@pytest.mark.matrix
@needs_unlike
@pytest.mark.parametrize("format_", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_files_of_other_tools(format_: QuantFormat, tmp_path: Path) -> None:
    found = on(by_onnxruntime(tmp_path / "a.onnx", format_), UNLIKE_HERE)
    assert found.first is not None
    assert found.first.op in ("Conv", "QLinearConv")
    assert found.undisturbed
    assert len(found.wrong_kernels) >= 2


@pytest.mark.parametrize("name", [cpu_named("haswell", False), cpu_named("neoverse-n1", False)])
def test_int8_activations(name: str, tmp_path: Path) -> None:
    """On x86 the runtime takes some of them for uint8, on ARM none."""
    file = by_onnxruntime(tmp_path / "a.onnx", activations=QuantType.QInt8)
    found = on(file, name)
    assert found.undisturbed
    assert bool(found.wrong_kernels) == ((name == "haswell") != SATURATES_HERE)


@pytest.mark.parametrize("name", [cpu_named("cortex-a53", False), cpu_named("wasm")])
def test_external_data(name: str, tmp_path: Path) -> None:
    file = by_onnxruntime(tmp_path / "a.onnx", external=True)
    assert on(file, name).codes > 8000
