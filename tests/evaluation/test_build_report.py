"""Gathering: each stage measured once, what was kept taken from there, bad data refused early."""

import numpy as np
import pytest
import torch

from qtool.core.errors import DataError
from qtool.evaluation.build_report import build_report
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.subject import Subject
from tests.evaluation.onnx_files import linear_file

QUICK = ReportOptions("a title", batch_sizes=(4,), seconds=0.01)
NOTE = "no layers here"


@pytest.fixture
def subjects(tmp_path):
    weights = np.eye(3), np.eye(3) + 0.01
    files = [linear_file(tmp_path / f"{n}.onnx", w) for n, w in zip("ab", weights, strict=True)]
    return [Subject(f.stem, f, f"made for {f.stem}") for f in files]


@pytest.fixture
def data():
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    return LabelledData(list(rows.split(4)))


def test_what_is_measured_stands_in_the_report(subjects, data):
    found = build_report(subjects, data, QUICK, layers=NOTE)
    assert found.title == "a title"
    assert [(m.name, m.origin) for m in found.models] == [("a", "made for a"), ("b", "made for b")]
    assert found.accuracy.samples == 10
    assert [t.batch for t in found.latency] == [4]
    assert found.profile.batch == 4
    assert (found.layers, found.layers_note) == (None, NOTE)
    assert found.models[0].verdict is None
    # nothing is quantized in these files, so that nothing counts as integer
    assert [m.integer_mac_share for m in found.models] == [0.0, 0.0]
    assert [m.exactness for m in found.models] == [None, None]


def test_bars_are_asked_for_every_stage(subjects, data):
    seen = []

    def bars(title, total):
        seen.append((title, total))
        return lambda items: items

    build_report(subjects, data, QUICK, layers=NOTE, bars=bars)
    assert seen == [("evaluating", 3), ("timing", 1)]


def test_labels_of_another_length_are_refused_before_any_work(data):
    labels = np.zeros(9, np.int64)
    with pytest.raises(DataError, match="9 labels for 10 samples"):
        LabelledData(data.batches, labels).check()
    LabelledData(iter(data.batches), labels).check()  # their number is not known before
