"""References: a module is imported at the first call."""

import subprocess
import sys

from qtool.core.on_use import OnUse, load

CODE = """
import sys
from qtool.core.on_use import OnUse
call = OnUse("colorsys:rgb_to_hsv")
assert "colorsys" not in sys.modules
assert call(1, 1, 1) == (0.0, 0.0, 1)
assert "colorsys" in sys.modules
"""


def test_a_module_is_imported_at_the_first_call() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_arguments_and_result_are_those_of_the_function() -> None:
    assert OnUse("builtins:sorted")([1, 2], reverse=True) == [2, 1]
    assert load("math:pi") > 3
