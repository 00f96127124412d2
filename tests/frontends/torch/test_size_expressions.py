"""Sizes of .pt2 files: what torch writes is taken, code is not evaluated."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core.errors import CaptureError
from qtool.frontends.torch.exported_program import load_program
from qtool.frontends.torch.size_expressions import is_size_expression

SIZES = [
    *("s0", "2*s0 + 1", "Mul(Integer(2), Symbol('s0', positive=True, integer=True))"),
    *("Float('0.5', precision=53)", "FloorDiv(Add(s77, Integer(-1)), 2)", "Eq(Symbol('s0'), 3)"),
    "floor(s0/2)",
]
CODE = [
    *("__import__('os').system('touch x')", "S('1')", "Poly('x')", "Symbol('a; b')"),
    *("Symbol(open('x'))", "exec(1)", "s0.free_symbols", "[s0]", "lambda: 1", "f'{s0}'"),
    *("(" * 5000, "", 5),
]


@pytest.mark.parametrize("text", SIZES)
def test_arithmetic_is_a_size(text: str) -> None:
    assert is_size_expression(text)


@pytest.mark.parametrize("text", CODE)
def test_everything_else_is_none(text: object) -> None:
    assert not is_size_expression(text)


class Resized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 3, 2, ceil_mode=True)
        return y.reshape(x.shape[0], -1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    names = {i: torch.export.Dim(name) for i, name in ((0, "batch"), (2, "h"), (3, "w"))}
    example = (torch.randn(2, 3, 8, 10),)
    program = torch.export.export(Resized(), example, dynamic_shapes={"x": names})
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def changed(file: Path, old: str, new: str) -> Path:
    """Copy an archive with another text in its JSON."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(file.with_name("other.pt2"), "w") as to:
        for name in source.namelist():
            data = source.read(name)
            to.writestr(name, data.replace(old.encode(), new.encode(), 1))
    return file.with_name("other.pt2")


def test_what_torch_writes_is_read(file: Path) -> None:
    assert load_program(file).graph_signature.user_inputs == ("x",)


def test_code_in_a_file_does_not_run(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = json.dumps(f"__import__('os').system('touch {mark}')")
    with pytest.raises(CaptureError, match=r"has the size .* which is more than arithmetic"):
        load_program(changed(file, '"as_int": 2', f'"as_expr": {{"expr_str": {code}}}'))
    assert not mark.exists()


def test_damaged_json_is_refused(file: Path) -> None:
    with pytest.raises(CaptureError, match=r"other\.pt2 is damaged \(JSONDecodeError"):
        load_program(changed(file, '"as_int": 2', '"as_int": '))
