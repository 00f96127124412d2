"""No argument of a remedy is forgotten by the tests that apply them."""

from __future__ import annotations

import ast
from pathlib import Path

from qtool.core import remedies
from tests.mistakes.test_remedies import COMMANDS
from tests.mistakes.test_remedies_of_calls import CALLS

ELSEWHERE = {
    "api/fastest_recipe --measure": "several ranks: tests/search/test_fastest_recipe.py",
    "algorithms/conversion_state --recover": "a note: test_a_note_names_a_step_that_works",
    "api/quantize_to_file --task": "an encoder-decoder",
    "backends/onnxruntime/emulation/jobs --samples": "emulators",
    "backends/onnxruntime/emulation/jobs --timeout": "emulators",
    "backends/onnxruntime/model_file --model": "a report: tests/evaluation/report",
    "backends/onnxruntime_webgpu/session --threads": "needs a GPU",
    "backends/tflite/model_file --model": "a report: tests/evaluation/report",
    "backends/tflite/planned_export --external-data": "Python's export, where the argument is one",
    "core/data/fixed_inputs --fix": "tests/frontends/onnx/test_size_branches.py",
    "evaluation/fixed_inputs --fix": "tests/frontends/onnx/test_size_branches.py",
    "evaluation/model_inputs --eval-data": "a decoder with a cache in int8",
    "evaluation/model_inputs --task": "a decoder with a cache",
    "frontends/data/rows --column": "tests/mistakes/test_file_remedies.py",
    "core/label_names --labels": "tests/mistakes/test_file_remedies.py",
    "frontends/data/table_remedies --column": "tests/mistakes/test_file_remedies.py",
    "frontends/data/processors --processor": "a folder of a user: tests/mistakes/test_folders.py",
    "frontends/data/processors --transform": "code of a user: tests/frontends/data",
    "frontends/huggingface/towers --task": "tests/frontends/huggingface/test_towers.py",
    "frontends/data/tables --column": "tests/mistakes/test_file_remedies.py",
    "frontends/data/unused_options --processor": "tests/mistakes/test_unused_options.py",
    "frontends/data/unused_options --transform": "tests/mistakes/test_unused_options.py",
    "frontends/data/unreadable_samples --max-unreadable": "tests/mistakes/test_downloads.py",
}
"""Arguments of remedies that are not applied here, with the reason."""


def test_all_arguments_of_remedies_are_applied() -> None:
    package = Path(remedies.__file__).parents[1]
    sites = set()
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "core.remedies import" not in source:
            continue
        calls = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call))
        for call in calls:
            named = isinstance(call.func, ast.Name) and call.func.id in ("Argument", "Omission")
            if named and call.args and isinstance(call.args[0], ast.Constant):
                where = path.relative_to(package).with_suffix("").as_posix()
                sites.add(f"{where} {call.args[0].value}")
    applied = {site for case in (*COMMANDS.values(), *CALLS.values()) for site in case[1]}
    arguments = {site for site in applied if site.partition(" ")[2].startswith("-")}
    assert sites <= arguments | ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= sites - arguments
