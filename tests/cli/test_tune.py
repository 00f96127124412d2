"""tune and explain on the sample network: a goal out of reach, and an answer that changed."""

from __future__ import annotations

import json

from tests.cli.conftest import DIGITS, Cli

DATA = ("--eval-data", "examples/digits/eval.npz", "--labels", "labels")
QUICK = ("--accuracy", "fast", "--budget", "0", "--archive", "search")


def test_a_goal_out_of_reach_writes_the_best_and_says_how_far(cli: Cli) -> None:
    asked = ("tune", *DIGITS, "--data", "calib_data/digits", *DATA, *QUICK, "-o", "best.onnx")
    result = cli(*asked, "--min-sqnr", "200", "--save-recipe", "best.toml", code=1)
    assert "goal missed: SQNR is 3" in result.stderr
    assert (cli.folder / "best.onnx").stat().st_size > 1000
    assert 'mode = "static"' in (cli.folder / "best.toml").read_text()
    again = json.loads(cli(*asked, "--min-sqnr", "20", "--page", "best.html", "--json").stdout)
    assert again["reached"]
    assert again["fresh"] == 0
    assert "All goals met" in (cli.folder / "best.html").read_text()


def test_explain_says_how_many_answers_changed(sample: Cli) -> None:
    words = sample.example_of("explain")
    assert sample(*words).stdout.endswith(" of 450 predictions changed\n")
    missing = sample.refuses(*words, "--sample", "450")
    assert missing == "there is no sample 450; the data has 450"
