"""Texts that recognisers read: which outputs they are, when they are equal, what is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.metrics.output_agreement import TEXT, TOKEN, output_agreement
from qtool.metrics.texts import blank_of, changes_text, same_texts
from qtool.verification.fidelity import compare_outputs

Array = np.ndarray[Any, Any]
CLASSES = 30


def lines(seed: int = 0, count: int = 100, positions: int = 24) -> Array:
    """Labels of lines: each character takes one or two positions, a blank 0 follows."""
    random = np.random.default_rng(seed)
    labels = np.zeros((count, positions), np.int64)
    for row in labels:
        for start in range(0, positions - 3, 4):
            row[start : start + random.integers(1, 3)] = random.integers(1, CLASSES)
    return labels


def scores(labels: Array) -> Array:
    """Clear scores of the labels, [samples, positions, classes]."""
    return (9 * np.eye(CLASSES, dtype=np.float32))[labels]


def test_texts_by_hand() -> None:
    one = np.array([[1, 1, 0, 1, 2, 0], [3, 0, 3, 3, 0, 0], [1, 2, 2, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    other = np.array(
        [[0, 1, 0, 1, 2, 2], [3, 3, 3, 3, 0, 0], [1, 2, 0, 2, 0, 0], [1, 0, 0, 0, 0, 0]]
    )
    assert same_texts(one, other, 0).tolist() == [True, False, False, True]


def test_positions_whose_label_makes_another_text() -> None:
    random = np.random.default_rng(2)
    labels, others = random.integers(0, 4, (2, 50, 9))
    changes = changes_text(labels, others, 0)
    for position in range(9):
        new = labels.copy()
        new[:, position] = others[:, position]
        assert (changes[:, position] == ~same_texts(labels, new, 0)).all()


def test_changes_of_text_are_expected_by_margins() -> None:
    """A dozen lines have no changed text, or one of a dozen."""
    random = np.random.default_rng(3)
    labels = lines(count=2000)
    real = 12 * random.random((*labels.shape, 1)) ** 0.5 * np.eye(CLASSES)[labels]
    real += 0.3 * random.normal(size=real.shape)
    coded = real + 0.12 * random.normal(size=real.shape)
    truth = same_texts(real.argmax(2), coded.argmax(2), 0).mean()
    rows = [random.choice(2000, 12, replace=False) for _ in range(60)]
    each = [output_agreement("logits", real[r], coded[r]) for r in rows]
    counted, expected = (
        np.array([getattr(e, name) for e in each]) for name in ("value", "expected")
    )
    assert 0.9 < truth < 0.99
    assert abs(expected.mean() - truth) < 0.02
    assert np.abs(expected - truth).mean() < 0.8 * np.abs(counted - truth).mean()
    assert each[0] is not None
    assert each[0].headline.startswith("same text ")


def test_characters_that_move_by_a_position_change_no_text() -> None:
    """Though each of the two positions alone would change it."""
    random = np.random.default_rng(4)
    labels = np.zeros((400, 40), int)
    labels[:, ::4] = random.integers(1, CLASSES, (400, 10))
    real = 9.0 * np.eye(CLASSES)[labels]
    margins, errors = 3 * random.random((400, 10)), random.normal(size=(400, 10))
    here, behind = real[:, ::4], real[:, 1::4]
    best = np.arange(CLASSES) == labels[:, ::4, None]
    here[:] = np.where(best, margins[..., None], np.where(np.arange(CLASSES) == 0, 0, -9))
    behind[:] = np.where(best, 0, np.where(np.arange(CLASSES) == 0, margins[..., None], -9))
    coded = real.copy()
    coded[:, ::4] -= best * errors[..., None]
    coded[:, 1::4] += best * errors[..., None]
    assert (real.argmax(2) == labels).all()
    assert same_texts(labels, coded.argmax(2), 0).mean() == 1
    assert (coded.argmax(2) != labels).any(1).mean() > 0.5
    rows = random.choice(400, 15, replace=False)
    agreement = output_agreement("logits", real[rows], coded[rows])
    assert agreement is not None
    assert agreement.expected is not None
    assert agreement.expected > 0.8


def test_the_blank_is_the_first_or_the_last_class() -> None:
    assert blank_of(lines(), CLASSES) == 0
    assert blank_of((lines() - 1) % CLASSES, CLASSES) == CLASSES - 1
    assert blank_of((lines() + 4) % CLASSES, CLASSES) is None


generator = np.random.default_rng(1)


@pytest.mark.parametrize(
    "labels",
    [
        generator.integers(0, CLASSES, (100, 24)),  # next tokens
        np.minimum(lines(), 5),  # names in a sentence
        np.repeat(lines(), 3, axis=1),  # areas of an image
        np.zeros((100, 24), np.int64),
        lines()[:, :6],
        lines()[0],
    ],
)
def test_other_labels(labels: Array) -> None:
    assert blank_of(labels, CLASSES) is None


def changed(labels: Array) -> Array:
    """Labels with another character in three lines, and a longer one, which is the same text."""
    new = labels.copy()
    new[:3, 0] = 1 + new[:3, 0] % (CLASSES - 1)
    new[50, 1] = new[50, 0]
    new[51, :2] = new[51, 0], 0
    return new


@pytest.mark.parametrize("form", ["probabilities", "labels"])
def test_the_headline_counts_texts(form: str) -> None:
    real, new = lines(), changed(lines())
    if form == "probabilities":
        real, new = scores(real), scores(new)
    name = "output" if form == "labels" else "logits"
    agreement = output_agreement(name, real, new)
    assert (agreement.kind, agreement.compared) == (TEXT, 100)
    assert 0.95 < agreement.value <= 0.97
    fidelity = compare_outputs(100, [name], [real], [new])
    assert fidelity.difference == f"same text {100 * agreement.value:.0f} %"
    assert ", same token 99." in fidelity.row()[1]
    assert compare_outputs(100, [name], [real], [real]).difference == ""


def test_one_line_is_judged_by_its_tokens() -> None:
    real = scores(lines(count=1))
    agreement = output_agreement("logits", real, real)
    assert agreement.kind == TOKEN


class Reader(nn.Module):
    """Scores of characters in the order of recurrent layers, [positions, samples, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(CLASSES, CLASSES)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(x).softmax(-1).transpose(0, 1)
        return result


def test_samples_in_the_second_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [torch.from_numpy(scores(lines(i, 33))) for i in range(4)]
    model = qtool.quantize(Reader().eval(), batches, accuracy="fast")
    model.export(tmp_path / "model.onnx")
    fidelity = model.fidelity
    (agreement,) = fidelity.estimate.agreements
    assert (agreement.kind, agreement.compared) == (TEXT, fidelity.estimate.samples)
