"""One pass over the data: metrics, agreement and worst samples, against numpy."""

import numpy as np
import pytest
import torch

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import DataError
from qtool.evaluation.measure.accuracy import summarize
from qtool.evaluation.summary_rows import sqnr_row
from tests.evaluation.language_models import texts, write_tagger
from tests.evaluation.measured import measure_outputs
from tests.evaluation.onnx_files import linear_file


@pytest.fixture
def files(tmp_path):
    """Twelve classes; the second file is off a little."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(6, 12))
    off = weight + 0.1 * generator.normal(size=(6, 12))
    return [linear_file(tmp_path / f"{n}.onnx", w) for n, w in (("a", weight), ("b", off))]


@pytest.fixture
def x():
    return torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


def outputs(file, x):
    import onnx
    from onnx import numpy_helper

    return x.numpy() @ numpy_helper.to_array(onnx.load(file).graph.initializer[0])


@pytest.mark.parametrize("size", [1, 16, 50])
def test_equals_numpy_whatever_the_batches(files, x, size):
    labels = np.random.default_rng(1).integers(0, 12, 50)
    found = summarize(measure_outputs(files, x.split(size)), labels)
    a, b = (outputs(f, x).astype(np.float64) for f in files)
    top1, top5 = found.metrics
    for i, scores in enumerate((a, b)):
        assert top1.values[i] == pytest.approx((scores.argmax(1) == labels).mean())
        best = np.argsort(-scores, 1)[:, :5]
        assert top5.values[i] == pytest.approx((best == labels[:, None]).any(1).mean())
    same = (a.argmax(1) == b.argmax(1)).mean()
    assert found.models[1].agreement.value == pytest.approx(same)
    db = 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())
    assert found.models[1].sqnr_db == pytest.approx(db, abs=1e-3)
    relative = ((a - b) ** 2).sum(1) / (a**2).sum(1)
    worst = found.models[1].worst
    assert [s.index for s in worst] == list(np.argsort(-relative)[: len(worst)])
    assert (worst[0].expected, worst[0].label) == (
        a.argmax(1)[worst[0].index],
        labels[worst[0].index],
    )
    assert found.models[0].sqnr_db is None
    assert found.samples == 50


def test_first_of_equal_scores_wins(tmp_path):
    file = linear_file(tmp_path / "a.onnx", np.ones((2, 3)))
    measured = measure_outputs([file], [torch.ones(4, 2)])
    assert (measured.classes[0, :, 0] == 0).all()


def test_labels_at_the_end_of_a_tuple_are_no_input(files, x):
    pairs = [(part, torch.zeros(len(part))) for part in x.split(16)]
    assert measure_outputs(files, pairs).samples == 50


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros(49, int), "49 labels for 50 samples"),
        (np.eye(50, 2, dtype=int), "have shape"),
        (np.full((50, 9), 0.5), "9 numbers per sample, the first output has 12"),
        (np.full((50, 12), np.nan), "label 0 is NaN"),
    ],
)
def test_labels_that_do_not_fit(files, x, labels, says):
    with pytest.raises(DataError, match=says):
        summarize(measure_outputs(files, [x]), labels)


@pytest.mark.parametrize("width", [1, 3], ids=["one number", "several"])
@pytest.mark.parametrize("size", [16, 50])
def test_errors_of_a_regression_equal_numpy(tmp_path, x, width, size):
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(6, width))
    off = weight + 0.1 * generator.normal(size=(6, width))
    pair = [linear_file(tmp_path / f"{n}.onnx", w) for n, w in (("a", weight), ("b", off))]
    targets = x.numpy() @ weight + generator.normal(size=(50, width))
    found = summarize(measure_outputs(pair, x.split(size)), targets)
    assert [m.name for m in found.metrics] == ["MAE", "MSE", "R2"]
    assert [m.higher_is_better for m in found.metrics] == [False, False, True]
    for i, file in enumerate(pair):
        error = outputs(file, x) - targets
        r2 = 1 - (error**2).sum(0) / ((targets - targets.mean(0)) ** 2).sum(0)
        expected = np.abs(error).mean(), (error**2).mean(), r2.mean()
        assert [m.values[i] for m in found.metrics] == pytest.approx(expected, rel=1e-5)
    assert found.scores == ""
    assert found.metrics[0].intervals[1] is not None


def test_a_column_of_class_numbers_is_one_per_sample(files, x):
    labels = np.random.default_rng(1).integers(0, 12, 50)
    measured = measure_outputs(files, [x])
    assert summarize(measured, labels[:, None]).metrics == summarize(measured, labels).metrics


def test_labels_without_scores(tmp_path, x):
    file = linear_file(tmp_path / "one.onnx", np.ones((6, 1)))
    with pytest.raises(DataError, match="labels need"):
        summarize(measure_outputs([file], [x]), np.zeros(50, int))


def test_a_language_model_has_perplexity_and_agreement_of_next_tokens(tmp_path):
    files = [write_tagger(tmp_path / "a.onnx"), write_tagger(tmp_path / "b.onnx", noise=0.3)]
    data = texts((3, 2, 4))
    result = summarize(measure_outputs(files, data), None)
    (metric,) = result.metrics
    assert (metric.name, metric.higher_is_better, metric.percent) == ("perplexity", False, False)
    hits = 0
    loss = np.zeros(2)
    divergence = 0.0
    for batch in data:
        logits = [
            torch.from_numpy(run(session(f), [t.numpy() for t in batch.values()])[0]) for f in files
        ]
        mask = batch["attention_mask"][:, 1:] == 1
        hits += int(((logits[0].argmax(-1) == logits[1].argmax(-1))[:, :-1] & mask).sum())
        reference, other = (each[:, :-1][mask].log_softmax(-1) for each in logits)
        divergence += float(
            torch.nn.functional.kl_div(other, reference, log_target=True, reduction="sum")
        )
        for i, each in enumerate(logits):
            entropy = torch.nn.functional.cross_entropy(
                each[:, :-1][mask], batch["input_ids"][:, 1:][mask], reduction="sum"
            )
            loss[i] += float(entropy)
    assert result.tokens == 9 * 8 - 3 * 3
    assert metric.values == pytest.approx(np.exp(loss / result.tokens), rel=1e-5)
    assert metric.drops[1] == pytest.approx(metric.values[1] - metric.values[0])
    assert metric.intervals[1].low < metric.drops[1] < metric.intervals[1].high
    assert result.models[1].kl == pytest.approx(divergence / result.tokens, rel=1e-4)
    assert result.models[0].kl == 0
    assert result.agreement_name == "next-token agreement"
    assert result.models[1].agreement.value == pytest.approx(hits / result.tokens)
    assert {s.predicted for s in result.models[1].worst} == {None}


def test_classes_of_tokens_agree_without_perplexity(tmp_path):
    files = [write_tagger(tmp_path / f"{n}.onnx", causal=False, noise=n * 0.3) for n in range(2)]
    result = summarize(measure_outputs(files, texts((2, 1))), None)
    assert (result.metrics, result.scores, result.tokens) == ((), "tokens", 3 * 9 - 2 * 3)
    assert 0 < result.models[1].agreement.value < 1
    assert result.models[0].agreement.value == 1


def classifiers(tmp_path, *weights):
    return [linear_file(tmp_path / f"{i}.onnx", w) for i, w in enumerate(weights)]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_labels_of_any_kind(tmp_path, kind):
    measured = measure_outputs(classifiers(tmp_path, np.eye(3)), [torch.eye(3)])
    assert summarize(measured, kind([0, 1, 1])).metrics[0].values == (pytest.approx(2 / 3),)


def test_outputs_of_another_network_are_a_warning(tmp_path):
    files = classifiers(tmp_path, np.eye(3), -np.eye(3))
    result = summarize(measure_outputs(files, [torch.eye(3)]), None)
    assert "more noise than signal (SQNR -6.0 dB)" in result.warnings[0]
    files = classifiers(tmp_path, np.eye(3), np.eye(3), -np.eye(3))
    measured = measure_outputs(files, [torch.eye(3)])
    (warning,) = summarize(measured, None, names=["float", "a", "b"]).warnings
    assert warning.startswith("the outputs of b have more noise")
    (warning,) = summarize(measured, None).warnings
    assert warning.startswith("the outputs of model 3 have more noise")


def test_nan_is_never_taken_for_no_error(tmp_path):
    broken = np.full((3, 3), np.nan)
    files = classifiers(tmp_path, np.eye(3), broken)
    result = summarize(measure_outputs(files, [torch.eye(3)]), None)
    assert result.models[1].sqnr_db == -200
    assert "NaN or Inf on 3 of 3 samples" in result.warnings[0]
    with pytest.raises(DataError, match="the float model outputs NaN or Inf on all 3 samples"):
        summarize(measure_outputs(files[::-1], [torch.eye(3)]), None)


def test_each_of_several_outputs_has_its_own_error_in_the_order_of_the_model(tmp_path):
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    files = []
    for index, noise in enumerate((0.0, 0.01)):
        model = Heads(weight * (1 + noise), weight * (1 + 3 * noise)).eval()
        captured = qtool.capture_model(model, torch.zeros(4, 6))
        files.append(captured.export_float(tmp_path / f"{index}.onnx"))
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    result = summarize(measure_outputs(files, x.split(4)), None).models[1]
    names = [name for name, _ in result.outputs]
    assert names == [o.name for o in session(files[0]).get_outputs()] == ["boxes", "areas"]
    assert [db for _, db in result.outputs] == pytest.approx(
        [-20 * np.log10(0.01), -20 * np.log10(0.03)], abs=0.01
    )
    assert sqnr_row(result.sqnr_db, 8, result.outputs) == (
        "SQNR",
        "boxes 40.0 dB, areas 30.5 dB (8 samples)",
    )


class Heads(torch.nn.Module):
    def __init__(self, boxes, areas):
        super().__init__()
        self.first, self.second = torch.nn.Parameter(boxes), torch.nn.Parameter(areas)

    def forward(self, x):
        return {"boxes": x @ self.first, "areas": x @ self.second}
