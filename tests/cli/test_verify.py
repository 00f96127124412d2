"""qtool verify --cpu: a processor that only pretends, and refusals."""

import json
from pathlib import Path

import pytest

from qtool.plugins.emulators import other_cpus
from qtool.plugins.emulators.available import Missing
from tests.cli.conftest import Cli
from tests.plugins.emulators.networks import pretend

DATA = ("--data", "examples/digits/eval.npz")
WRONG = """
if stem == "forced":  # the last codes of the file that returns them
    file = max(outputs.glob(f"{batch}-*.npy"), key=lambda f: int(f.stem.split("-")[1]))
    values = np.load(file)
    values.flat[0] ^= 1
    np.save(file, values)
"""


@pytest.fixture
def emulated(sample: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Every processor can be emulated, and is this one."""
    monkeypatch.setattr(other_cpus, "check_available", lambda *_, **__: Missing())
    (tmp_path / "scripts").mkdir()
    pretend(monkeypatch, tmp_path / "scripts")
    return sample


def test_equal_codes_are_exit_code_0(emulated: Cli) -> None:
    message = emulated(
        "verify", "digits.int8.onnx", "--cpu", "haswell,wasm", "--samples", "8"
    ).stdout
    assert "\ndigits.int8.onnx  identical codes on each CPU\n  compared  8 samples, with" in message
    rows = [line.split() for line in message.splitlines()[1:3]]
    assert [row[0] for row in rows] == ["haswell", "wasm"]
    assert [row[1:4] for row in rows] == [["80", "of", "80"]] * 2


def test_all_runs_what_is_here_and_names_the_rest(
    emulated: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Missing(("cortex-a53", "wasm"), "cortex-a53 (no qemu), wasm (no node); install both")
    asked: list[bool] = []
    check = lambda cpus, some: asked.append(some) or missing  # noqa: E731  # in one line
    monkeypatch.setattr(other_cpus, "check_available", check)
    words = ("verify", "digits.int8.onnx", "--cpu", "all", "--samples", "4")
    message = emulated(*words).stdout
    assert "identical codes on 4 CPUs; not run on cortex-a53, wasm\n" in message
    assert "not run   cortex-a53 (no qemu), wasm (no node); install both" in message
    printed = json.loads(emulated(*words, "--json").stdout)
    assert printed["missing"] == ["cortex-a53", "wasm"]
    assert len(printed["results"]) == 4
    emulated("verify", "digits.int8.onnx", "--cpu", "haswell,nehalem", "--samples", "4")
    assert asked == [True, True, False]


def test_other_codes_are_exit_code_1(
    emulated: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again").mkdir()
    pretend(monkeypatch, tmp_path / "again", WRONG)
    words = ("verify", "digits.int8.onnx", "--cpu", "nehalem", "--samples", "8")
    assert "1 of 17 integer kernels" in emulated(*words, code=1).stdout
    printed = json.loads(emulated(*words, "--json", code=1).stdout)
    (row,) = printed["results"]
    assert (row["cpu"], row["identical"], printed["identical"]) == ("nehalem", False, False)
    assert len(row["wrong_kernels"]) == 1


@pytest.mark.parametrize(("batch", "samples"), [(32, 20), (8, 20), (16, 32)])
def test_so_many_samples_of_the_data(batch: int, samples: int, emulated: Cli) -> None:
    sizes = ("--batch-size", str(batch), "--samples", str(samples))
    message = emulated("verify", "digits.int8.onnx", "--cpu", "haswell", *DATA, *sizes).stdout
    assert f"  compared  {samples} samples, " in message


def test_a_time_limit_is_a_refusal(
    emulated: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again").mkdir()
    pretend(monkeypatch, tmp_path / "again", "import time; time.sleep(600)")
    words = ("verify", "digits.int8.onnx", "--cpu", "wasm", "--samples", "4", "--timeout", "1")
    assert "wasm was stopped after 1 s; give fewer samples" in emulated.refuses(*words)


def test_refusals(sample: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = sample.refuses("verify", "digits.int8.onnx", "--cpu", "pentium")
    assert "unknown processor 'pentium'; choose from haswell, " in message
    assert "no such file" in sample.refuses("verify", "no.onnx", "--cpu", "haswell")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = sample.refuses("verify", "digits.int8.onnx", "--cpu", "haswell")
    assert "haswell (qemu-x86_64 is not installed); docs/emulators.md says " in message
