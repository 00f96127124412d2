"""Messages name arguments as their readers write them."""

import inspect
import re
from pathlib import Path

import pytest

import qtool
from qtool.core import argument_names
from qtool.core.argument_names import argument, options_in_messages, python_only

PACKAGE = Path(argument_names.__file__).parents[1]
NAMED = r"(?:argument|Argument|Omission|options_in_use)\("
NAMES = sorted(
    {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(rf"{NAMED}['\"](--?[\w-]+)", path.read_text(encoding="utf-8"))
    }
)
CALLS = (
    qtool.quantize,
    qtool.load_data,
    qtool.load_model,
    qtool.evaluate,
    qtool.verify_on,
    qtool.bench,
    qtool.report,
    qtool.QuantizedModel.export,
    qtool.convert,
    qtool.FileOptions,
    qtool.quantize_to_file,
    qtool.gate,
    qtool.TuneGoals,
)


def test_python_and_the_command_line() -> None:
    assert (argument("--batch-size", 8), argument("--processor")) == ("batch_size=8", "'folder'")
    with options_in_messages():
        assert (argument("--batch-size", 8), argument("--processor")) == (
            "--batch-size 8",
            "--processor",
        )
        assert argument("--column", "first name") == "--column 'first name'"
        assert argument("--fix", ("a=1", "b=*")) == "--fix a=1 --fix 'b=*'"
    assert argument("--target", "qnn") == "target='qnn'"


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_a_message_exists_in_python(name: str) -> None:
    known = {parameter for call in CALLS for parameter in inspect.signature(call).parameters}
    spelled = argument(name).strip("'")
    assert spelled in known or hasattr(qtool, spelled.removeprefix("qtool.").partition("(")[0])


def test_no_message_names_an_option_alone() -> None:
    """Options outside of `argument` are those of other programs, or in texts on commands."""
    allowed = {
        "emulators/available.py",
        "page/figures.py",
        "tflite/deployment.py",
    }
    pattern = re.compile(r"""["' `(]--[a-z]""")
    wrong = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "/".join(path.parts[-2:]) not in allowed and path.name != "argument_names.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(re.sub(rf"{NAMED}[^)]*\)|`(qtool|hf) [^`]*`", "", line))
        and not line.strip().startswith(("#", "name: as in"))
    ]
    assert not wrong


def test_a_command_is_not_told_what_only_python_has() -> None:
    assert python_only("dynamic={}") == ("dynamic={}",)
    with options_in_messages():
        assert python_only("dynamic={}") == ()
