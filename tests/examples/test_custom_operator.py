"""The example operator in Python, and in C++ where there is a compiler."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import qtool
from examples.custom_operator import build
from examples.custom_operator.convert import main
from examples.custom_operator.mgu import FUNCTION, cpp_form, python_form, register
from examples.custom_operator.network import Tagger
from tests.backends.onnx.operators.outside import restored

pytestmark = pytest.mark.matrix
COMPILER = os.environ.get("CXX", "c++" if os.name != "nt" else "cl")


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    with restored():
        yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C++ compiler ({COMPILER}) on this machine")
    pytest.importorskip("setuptools", reason="torch.utils.cpp_extension needs setuptools")
    return cpp_form(str(tmp_path_factory.mktemp("cells")))


@pytest.fixture(params=["python", "c++"])
def operator(request: pytest.FixtureRequest) -> Any:
    return python_form if request.param == "python" else request.getfixturevalue("compiled")


def arguments(batch: int = 3, time: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((batch, time, 4), (12, 4), (12, 6), (12,))
    return tuple(torch.randn(s, generator=generator) for s in shapes)


def test_both_forms_are_the_same_operator(compiled: Any) -> None:
    torch.testing.assert_close(compiled(*arguments()), python_form(*arguments()))


def test_the_fake_function_tells_the_truth(operator: Any) -> None:
    torch.library.opcheck(
        getattr(operator, "_opoverload", getattr(operator, "default", None)),
        arguments(),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize(("batch", "time"), [(3, 5), (1, 1), (2, 9)])
def test_the_onnx_function_computes_the_same(batch: int, time: int) -> None:
    names = [*FUNCTION.input]
    given = arguments(batch, time)
    node = onnx.helper.make_node("MGU", names, ["states"], domain="cells")
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, t.shape)
        for n, t in zip(names, given, strict=True)
    ]
    output = onnx.helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, [batch, time, 6])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "mgu", inputs, [output]),
        functions=[FUNCTION],
        opset_imports=[onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("cells", 1)],
    )
    model.ir_version = 10
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {n: t.numpy() for n, t in zip(names, given, strict=True)})
    expected = python_form(*given).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-6)  # two libraries' tanh and order of sums


def test_it_is_converted_whole(operator: Any, tmp_path: Path) -> None:
    register(operator)
    torch.manual_seed(0)
    batches = [torch.randn(16, 12, 8) for _ in range(2)]
    model = qtool.quantize(Tagger(operator).eval(), batches)
    found = model.export(tmp_path / "tagger.onnx")
    written = onnx.load(tmp_path / "tagger.onnx")
    codes = {i.name for i in written.graph.initializer if i.data_type == onnx.TensorProto.INT8}
    decision = model.plan.decision("mgu")
    row = next(r for r in found.coverage.rows if r.name == "mgu")
    assert [(n.domain, n.op_type) for n in written.graph.node if n.domain] == [("cells", "MGU")]
    assert {"mgu.weight.codes", "mgu.recurrent.codes"} <= codes
    assert (decision.execution.value, decision.macs) == ("weights", 12 * (48 * 16 + 48 * 24))
    assert (row.weights_only, row.macs) == (True, decision.macs)
    assert found.exactness.exact
    assert found.parity.passed


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(str(tmp_path / "tagger.onnx"), python=True)
    assert (tmp_path / "tagger.onnx").is_file()
    assert "cells_python::mgu" in capsys.readouterr().out


def test_what_is_compiled_already_is_loaded(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next(p.parent for p in map(Path, torch.ops.loaded_libraries) if p.name == "cells.so")
    monkeypatch.setattr(build, "_compile", lambda folder: pytest.fail("it was compiled again"))
    assert build.load(folder) == compiled
