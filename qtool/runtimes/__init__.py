"""Runtimes: what runs a file, what it calls the nodes it really runs, whose arithmetic it has."""

from qtool.runtimes.base import Kernel, Runtime
from qtool.runtimes.table import RUNTIMES, runtime

__all__ = ["RUNTIMES", "Kernel", "Runtime", "runtime"]
