"""No remedy is forgotten by the tests that apply them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from qtool.core import remedies
from tests.mistakes.remedies import texts_of
from tests.mistakes.test_remedies import COMMANDS
from tests.mistakes.test_remedies_of_calls import CALLS

ELSEWHERE = {
    "api/fastest_recipe --measure": "several ranks: tests/search/test_fastest_recipe.py",
    "algorithms/conversion_state --recover": "a note: test_a_note_names_a_step_that_works",
    "api/cached_files --task": "tests/cli/test_model_folders.py",
    "api/model_parts --task": "an encoder-decoder",
    "api/model_parts -o": "a decoder with a cache: tests/cli/test_model_folders.py",
    "api/reports --model": "a whole report: tests/mistakes/test_newcomers.py",
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
    "frontends/data/processors --max-length": "tests/frontends/huggingface/test_text_positions.py",
    "frontends/data/processors --processor": "a folder of a user: tests/mistakes/test_folders.py",
    "frontends/data/processors --transform": "code of a user: tests/frontends/data",
    "frontends/huggingface/towers --task": "tests/frontends/huggingface/test_towers.py",
    "frontends/data/tables --column": "tests/mistakes/test_file_remedies.py",
    "frontends/data/unused_options --processor": "tests/mistakes/test_unused_options.py",
    "frontends/data/unused_options --transform": "tests/mistakes/test_unused_options.py",
    "backends/onnx/cross_attention --task": "an encoder-decoder",
    "backends/tflite/file/storage --recipe": "a file of more than 2 GiB",
    "backends/tflite/file/storage --target": "the same",
    "calibration/merge --observer": "tests/calibration/test_merge.py",
    "evaluation/gate/metrics --metric": "tests/evaluation/gate",
    "evaluation/gate/vectors --metric": "the same",
    "frontends/data/class_order --classes": "tests/frontends/data/test_class_order.py",
    "frontends/data/collators --processor": "needs a tokenizer: tests/frontends/data",
    "frontends/data/collators --transform": "code of a user: tests/frontends/data",
    "frontends/data/recordings --state": "tests/frontends/data/test_recordings.py",
    "frontends/data/sliding_windows --max-length": "needs a tokenizer: tests/frontends/data",
    "frontends/data/sliding_windows --stride": "the same",
    "frontends/huggingface/causal_decoder --task": "a decoder with layers of other kinds",
    "frontends/huggingface/foreign_weights --task": "tests/frontends/huggingface",
    "frontends/huggingface/model_folder --task": "the same",
    "frontends/data/unreadable_samples --max-unreadable": "tests/mistakes/test_downloads.py",
}
"""Arguments of remedies that are not applied here, with the reason."""


SETUPS = {
    "install Chrome, then try again": "emulators",
    "add the distribution's source for arm64 to apt (on Ubuntu on another server than amd64), "
    "then try again": "emulators",
    "type `sudo apt-get install --no-install-recommends {}` (Debian, Ubuntu)": "emulators",
    "install the package that holds {} and {}, version 7.2 or newer": "emulators",
    "install them again": "emulators",
    "run qtool in the folder that holds '{}'": "tests/frontends/test_named_objects.py",
    "wait until it ends, or stop it": "tests/blockwise/test_by_blocks.py",
    "run one process": "several ranks: tests/distributed",
    "start all of them with torchrun": "the same",
    "unset WORLD_SIZE to run in one process": "the same",
    "start all ranks with torchrun": "the same",
    "unset it to run in one process": "the same",
    "call init_process_group first, and destroy_process_group last": "the same",
    "start all ranks with the same files and options": "the same",
    "install the same version everywhere": "the same",
}
"""Changes of what runs, with what tests them."""
PACKAGES = {
    "{}": "tests/mistakes/test_remedies_of_calls.py",
    "ai-edge-litert": "the same",
    "'{}[{}]'": "the extra of qtool with torch: tests/test_without_torch.py",
    "graphlay": "a page that shows a graph",
    "qtool": "a self-test of a version that there is not",
    "tomli": "Python 3.10",
}
"""Packages, with what tests them."""


def _sites(folder: Path) -> set[str]:
    """Return the module and the name of each argument of a remedy."""
    return {
        f"{path.relative_to(folder).with_suffix('').as_posix()} {call.args[0].value}"
        for path in folder.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("Argument", "Omission")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def test_all_arguments_of_remedies_are_applied() -> None:
    sites = _sites(Path(remedies.__file__).parents[1])
    applied = {site for case in (*COMMANDS.values(), *CALLS.values()) for site in case[1]}
    arguments = {site for site in applied if site.partition(" ")[2].startswith("-")}
    assert sites <= arguments | ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= sites - arguments


@pytest.mark.parametrize(("kind", "known"), [("Setup", SETUPS), ("Package", PACKAGES)])
def test_all_setups_and_packages_are_known(kind: str, known: dict[str, str]) -> None:
    assert texts_of(kind) == known.keys()


def test_each_kind_of_remedy_has_a_table() -> None:
    """The tables of the others: tests/mistakes/test_*_edits.py and test_other_files.py."""
    kinds = {kind.__name__ for kind in get_args(remedies.Remedy)}
    edits = {"DataEdit", "ModelEdit", "CallEdit", "OtherFile"}
    assert kinds == {"Argument", "Omission", "Setup", "Package"} | edits
