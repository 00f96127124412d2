"""A benchmark that runs itself in a process of its own, with one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_fresh(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script; return the JSON of the last line that it prints."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
