"""What a report is asked for is light to import."""

import subprocess
import sys


def test_commands_take_their_defaults_without_loading_torch() -> None:
    code = "import sys, qtool.evaluation.options; print(*{'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
