"""What a module registers is known to the commands behind --import."""

from collections.abc import Iterator

import pytest

from qtool.planning.targets import TARGETS
from tests.backends.onnx.operators.outside import restored
from tests.cli.conftest import Cli

M = "tests.cli.models"
CALL = ("calibrate", f"{M}:transposed", "--data", f"{M}:images", "-o", "cal.safetensors")


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    with restored():
        yield


def test_a_target_and_an_observer_of_ones_own(cli: Cli) -> None:
    refused = cli.refuses(*CALL, "--target", "mine")
    assert "mine" in refused
    cli("--import", "tests.cli.registers", *CALL, "--target", "mine", "--observer", "all_of_it")
    assert "mine" in TARGETS
    assert "cal.safetensors" in cli.files()


def test_a_module_that_is_not_there(cli: Cli) -> None:
    assert "cannot import nowhere: ModuleNotFoundError" in cli.refuses("--import", "nowhere", *CALL)
