"""The example operator in Python, and in C++ where there is a compiler."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.custom_operator import build
from examples.custom_operator.convert import main
from examples.custom_operator.mgu import cpp_form, python_form
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


def test_the_fake_function_tells_the_truth(operator: Any) -> None:
    torch.library.opcheck(
        getattr(operator, "_opoverload", getattr(operator, "default", None)),
        arguments(),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(str(tmp_path / "tagger.onnx"), python=True)
    assert (tmp_path / "tagger.onnx").is_file()
    assert "cells_python::mgu" in capsys.readouterr().out


def test_what_is_compiled_already_is_loaded(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next(p.parent for p in map(Path, torch.ops.loaded_libraries) if p.name == "cells.so")
    monkeypatch.setattr(build, "_compile", lambda folder: pytest.fail("it was compiled again"))
    assert build.load(folder) == compiled
