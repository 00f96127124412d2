"""qtool report: what it writes, what it refuses, and its exit codes."""

import json

import numpy as np
import pytest
from qtool.cli.output import exit_if_missed

from tests.cli.conftest import DIGITS, Cli
from tests.evaluation.report.page.made_up import made_up

QUICK = ("--seconds", "0.01", "--batch-sizes", "4", "--layer-samples", "32")
EVAL = ("--model", *DIGITS, "--data", "examples/digits/eval.npz")


def per_sample(model):
    """Metrics of the sample network: an array, one number a sample, and a number."""
    import torch

    with np.load("examples/digits/eval.npz") as file:
        scores, labels = model(torch.from_numpy(file["x"])), file["labels"]
    hits = scores.argmax(1).numpy() == labels
    return {"hits": hits.astype(float), "loss": float(-scores.log_softmax(1).mean())}


def test_metrics_of_the_user(sample: Cli) -> None:
    text = sample(
        *("report", "digits.int8.onnx", *EVAL, *QUICK, "-o", "r", "--json"),
        *("--eval", "tests.cli.test_report:per_sample", "--minimize", "loss"),
    )
    hits, loss = json.loads(text.stdout)["accuracy"]["metrics"]
    assert (hits["name"], loss["name"]) == ("hits", "loss")
    assert hits["intervals"][1] is not None
    assert loss["intervals"][1] is None
    assert not loss["higher_is_better"]


@pytest.mark.parametrize("goal", [("--min-speedup", "1e6"), ("--max-drop", "-0.5")])
def test_a_goal_that_is_missed(sample: Cli, goal: tuple[str, str]) -> None:
    words = ("report", "digits.int8.onnx", *EVAL, "--labels", "labels", *QUICK, "-o", "r")
    result = sample(*words, *goal, code=1)
    assert "goal missed by " in result.stderr
    assert (sample.folder / "r" / "report.html").exists()


@pytest.mark.parametrize(
    ("drop", "fail_on", "fails"),
    [
        (0.001, "review", False),
        (0.009, "bad", False),
        (0.009, "review", True),
        (0.05, "bad", True),
        (0.05, None, False),
    ],
)
def test_fail_on_a_verdict(drop, fail_on, fails, capsys):
    report = made_up(drop=drop)
    if not fails:
        exit_if_missed(report, fail_on)
        return
    with pytest.raises(SystemExit) as exit_:
        exit_if_missed(report, fail_on)
    assert exit_.value.code == 1
    message = f"--fail-on {fail_on}: int8: {report.models[1].verdict.headline}"
    assert message in capsys.readouterr().err
