"""An ONNX file as a function of tensors."""

import numpy as np
import pytest
import torch

from qtool.core.errors import DataError
from qtool.evaluation.user_metrics import FileFunction
from tests.evaluation.onnx_files import linear_file


@pytest.fixture
def function(tmp_path):
    return FileFunction(linear_file(tmp_path / "f.onnx", 2 * np.eye(3)))


def test_tensors_by_position_and_by_name(function):
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(function(x), 2 * x)
    assert torch.equal(function(x=x), 2 * x)
    assert function.eval() is function


def test_calls_are_counted_in_errors(function):
    function(torch.zeros(1, 3))
    with pytest.raises(DataError, match="batch 1, input 'x' is int64"):
        function(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(DataError, match="batch 2 lacks input 'x'"):
        function(a=torch.zeros(1, 3), b=torch.zeros(1, 3))
