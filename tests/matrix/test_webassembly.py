"""Every operator in onnxruntime-web, next to this machine."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qtool
from qtool.backends.formats import open_model
from qtool.planning.plan import Execution
from tests.models.arms import Arms
from tests.needs import needs_web
from tests.operators.table import CASES

pytestmark = needs_web
PER_FILE = 10
KINDS = sorted({(case.shapes, case.indices) for case in CASES.values()})
FILES = [
    names[at : at + PER_FILE]
    for kind in KINDS
    for names in [[n for n, c in CASES.items() if (c.shapes, c.indices) == kind]]
    for at in range(0, len(names), PER_FILE)
]


@pytest.mark.parametrize("names", FILES, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_operators_give_the_same_codes(names: list[str], tmp_path: Path) -> None:
    case, path = CASES[names[0]], tmp_path / "model.onnx"
    network = Arms({n: CASES[n].make() for n in names}).eval()
    inputs = tuple(torch.randint(0, 10, s) if case.indices else torch.randn(s) for s in case.shapes)
    model = qtool.quantize(network, [inputs], accuracy="fast")
    model.export(path)
    arrays = [x.numpy() for x in inputs]
    here, web = (open_model(path, runtime=r).run(arrays) for r in ("onnxruntime", "node"))
    in_float = {
        d.node.partition(".")[0] for d in model.plan.nodes if d.execution is not Execution.INTEGER
    }
    for name, ours, theirs in zip(names, here, web, strict=True):
        if name not in in_float:
            np.testing.assert_array_equal(theirs, ours, err_msg=name)
        # a float layer rounds its last bits otherwise, and a code behind it may be the next one
        assert np.abs(theirs - ours).max() <= 0.06 * np.ptp(ours), name
