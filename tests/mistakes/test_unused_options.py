"""Options of reading are used or refused, for each kind of data and each command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from qtool.cli import main

import qtool
from qtool.core.remedies import Omission
from qtool.frontends.data.unused_options import USES
from tests.mistakes.mistake import check_refused
from tests.mistakes.nets import IMAGES, image_net, quantize

M = "tests.mistakes.nets"
KINDS: dict[str, set[str]] = {
    f"{M}:images": set(),
    "images.npy": set(),
    "arrays": set(),
    "numbers.csv": {"column"},
    "named.csv": {"column", "classes"},
    "texts.txt": {"folder", "max_length", "padded"},
    "texts.csv": {"folder", "max_length", "padded", "column"},
    "photos": {"transform", "folder", "unreadable", "classes"},
    "loose": {"transform", "folder", "unreadable"},
    "sounds": {"transform", "folder", "unreadable"},
}
"""Data -> the arguments that it uses."""
VALUES: dict[str, tuple[str, Any, str]] = {
    "transform": ("--transform", f"{M}:tensor_of", "images and sounds"),
    "folder": ("--processor", "bert", "texts, images and sounds"),
    "max_length": ("--max-length", 8, "texts"),
    "padded": ("--pad-to-max-length", True, "texts, a sample each"),
    "unreadable": ("--max-unreadable", 0.5, "images and sounds"),
    "column": ("--column", "a", "tables and saved datasets"),
    "classes": ("--classes", "cat,dog", "labels that are names"),
}
"""Argument -> option, value and what it is for."""
COMMANDS = (
    f"quantize {M}:image_net -o out.onnx --data",
    f"calibrate {M}:image_net -o out.calib --data",
    f"evaluate int8.onnx --model {M}:image_net --data",
    f"report int8.onnx --model {M}:image_net -o out --data",
    "gate int8.onnx --against int8.onnx --data",
    "compare int8.onnx int8.onnx --data",
    "bench int8.onnx --batch-sizes 4 --data",
    "verify int8.onnx --data",
    f"tune {M}:image_net --max-drop 0.1 -o out.onnx --eval-data images.npy --data",
)
"""Commands that read data."""
UNUSED = "UnusedOptionError no --max-length", "--max-length is for texts, not for images.npy"


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    np.save("images.npy", IMAGES)
    (folder / "arrays").mkdir()
    np.save("arrays/a.npy", IMAGES)
    (folder / "numbers.csv").write_text("a,b,label\n" + "0.5,1.5,1\n" * 4)
    (folder / "named.csv").write_text("a,b,label\n" + "0.5,1.5,cat\n" * 4)
    (folder / "texts.txt").write_text("a cat\na dog\n")
    (folder / "texts.csv").write_text("text\na cat\na dog\n")
    for place in ("photos/cat", "photos/dog", "loose"):
        (folder / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(f"{place}/a.png")
    (folder / "sounds").mkdir()
    (folder / "sounds/a.wav").write_bytes(bytes(9))
    (folder / "bert").mkdir()


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "int8.onnx"
    quantize([IMAGES], image_net()).export(path)
    return path


def _error(source: str, **options: Any) -> qtool.QtoolError:
    """Return the error of loading data; one without message if there is none."""
    try:
        qtool.load_data(source, **options)
    except qtool.QtoolError as error:
        return error
    return qtool.QtoolError()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("source", KINDS)
def test_an_option_is_used_or_refused(source: str, name: str) -> None:
    option, value, purpose = VALUES[name]
    labels = {"labels": "label"} if source in ("numbers.csv", "named.csv") else {}
    transform = {"transform": f"{M}:tensor_of"} if source in ("photos", "loose", "sounds") else {}
    error = _error(source, **{**labels, **(transform if name != "folder" else {}), name: value})
    if name in KINDS[source]:
        assert " is for " not in str(error)
        return
    assert error.problem == f"{name!r} is for {purpose}, not for {source}"
    assert error.remedies == (Omission(option),)
    assert " is for " not in str(_error(source, **labels, **transform))


def test_all_options_of_reading_are_listed() -> None:
    assert {option[2:] for option, _, _ in VALUES.values()} | {"stride"} == USES.keys()


def test_a_transform_takes_the_place_of_a_processor() -> None:
    error = _error("photos", transform=f"{M}:tensor_of", folder="bert")
    assert "'transform' prepares what photos has" in str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_what_they_would_ignore(command: str, int8: Path, folder: Path) -> None:
    (folder / "int8.onnx").symlink_to(int8)
    check_refused(f"{command} images.npy --max-length 8", *UNUSED)


def test_each_of_two_sources_uses_a_part_of_the_options(folder: Path) -> None:
    command = (
        f"quantize {M}:image_net --data photos --transform {M}:tensor_of --eval-data images.npy "
        "--labels labels.npy --batch-size 20 --accuracy fast --seconds 0 -o out.onnx"
    )
    np.save("labels.npy", np.arange(40) % 5)
    result = CliRunner().invoke(main, command.split(), prog_name="qtool")
    assert result.exit_code == 0, result.output
    check_refused(f"{command} --max-length 8", *UNUSED)
