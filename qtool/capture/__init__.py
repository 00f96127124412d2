"""Capture: one file per kind of source, each giving the same float graph."""

from qtool.capture.module import capture_module
from qtool.capture.program import from_program, load_program

__all__ = ["capture_module", "from_program", "load_program"]
