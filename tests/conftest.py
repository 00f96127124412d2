"""What every test starts from: one torch thread, one seed; and the sample network with its data."""

import gc
import logging
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._export.utils
from onnxscript.values import TracedOnnxFunction
from safetensors.torch import load_file
from sympy.solvers import inequalities
from torch import nn
from torch.onnx._internal.exporter import _schemas

from examples.digits.network import digits_net
from qtool.core import versions
from tests.slowest import MATRIX_TESTS, check_cpu_time, write_skipped, write_slowest

ROOT = Path(__file__).parents[1]

torch.set_num_threads(1)  # tests run side by side in processes, and sums keep one order
# pytest listens to loggers that do not propagate, and torch describes each graph to who listens.
logging.getLogger("torch.__trace").propagate = True
logging.getLogger("torch.__trace").handlers.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the slowest and the skipped tests to files that `make test` names."""
    if path := os.environ.get("SLOWEST_TESTS"):
        reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
        write_slowest(reports, ROOT / path)
    if path := os.environ.get("SKIPPED_TESTS"):
        write_skipped(terminalreporter.getreports("skipped"), ROOT / path)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `matrix_tests.txt` names; skip `cuda` where there is no device."""
    named = tuple(MATRIX_TESTS.read_text("utf-8").split("\n")[:-1])
    for item in items:
        if item.nodeid.startswith(named):
            item.add_marker(pytest.mark.matrix)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without collections of garbage, which take a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test draws the same random numbers, alone or among others, in any order."""
    value = 0
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - libraries under test may use the global state
    torch.default_generator.manual_seed(value)  # torch.manual_seed formats a stack for each device
    return value


@pytest.fixture(autouse=True)
def cpu_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that takes more CPU time than MAX_TEST_SECONDS, which `.ci/run` sets."""
    limit = os.environ.get("MAX_TEST_SECONDS")
    with nullcontext() if limit is None else check_cpu_time(request.node, float(limit)):
        yield


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Exclude what imports left (millions of objects of torch) from collections of garbage.

    A conversion by blocks collects after each block: most of the time of its tests.
    """
    gc.collect()
    gc.freeze()


SHORTCUTS = {
    # Conversions ask several times whether objects are frozen; Python counts them each time.
    "qtool.core.memory._promote_survivors": partial(gc.collect, 1),
    "qtool.api.quantized_model.QUICK_TIMING": 0.0,  # it depends on what else runs
    # The lines of a model that made a node: a tenth of the time of torch.
    "torch.fx.config.do_not_emit_stack_traces": True,
    # Drawings: most of the time of a report. `made_up.drawn_pages` has them.
    "qtool.evaluation.report.page.render._figures": lambda report: {},
    # No test is about what a power cut leaves. Those of failures make it fail, over this one.
    "os.fsync": lambda _: None,
}


@pytest.fixture(autouse=True, scope="session")
def shortened() -> Iterator[None]:
    """Leave out what no test is about, and compute once what each conversion asks anew.

    The latter: operators of torch, their ONNX forms, versions of packages, the range of a batch.
    """
    with pytest.MonkeyPatch.context() as patch:
        for target, value in SHORTCUTS.items():
            patch.setattr(target, value)
        for module, name in (
            (torch._export.utils, "_materialize_cpp_cia_ops"),
            (_schemas, "op_signature_from_function"),
            (versions, "version"),
        ):
            if function := getattr(module, name, None):  # other versions have other internals
                patch.setattr(module, name, cache(function))
        signature = cache(TracedOnnxFunction.function_ir.fget)
        patch.setattr(TracedOnnxFunction, "function_ir", property(signature))
        solve = cache(inequalities.reduce_inequalities)
        patch.setattr(inequalities, "reduce_inequalities", lambda e, s: solve(frozenset(e), s))
        yield


@dataclass(frozen=True)
class Digits:
    """The files of the sample network, and the data in them."""

    weights: Path
    calibration: Path
    evaluation: Path
    calibration_images: np.ndarray
    images: np.ndarray
    labels: np.ndarray


@pytest.fixture(scope="session")
def digits() -> Digits:
    """The sample's data: calibration images, evaluation images and labels, and their paths."""
    calibration = ROOT / "calib_data" / "digits"
    evaluation = ROOT / "examples" / "digits" / "eval.npz"
    with np.load(calibration / "images.npz") as file:
        calibration_images = file["x"]
    with np.load(evaluation) as file:
        images, labels = file["x"], file["labels"]
    return Digits(
        weights=ROOT / "examples" / "digits" / "weights.safetensors",
        calibration=calibration,
        evaluation=evaluation,
        calibration_images=calibration_images,
        images=images,
        labels=labels,
    )


@pytest.fixture
def digits_model(digits: Digits) -> nn.Module:
    """The trained sample network, a fresh one for each test, in eval mode."""
    net = digits_net()
    net.load_state_dict(load_file(digits.weights), strict=True)
    return net
