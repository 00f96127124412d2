"""Compiles mgu.cpp, once, and loads it; ninja is not needed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

__all__ = ["load"]

SOURCE = Path(__file__).parent / "mgu.cpp"


def load(folder: str | Path | None = None) -> torch._ops.OpOverloadPacket:
    """The operator `cells::mgu`, compiled into `folder` unless it is there already.

    Args:
        folder: by default one for temporary files, so that every run compiles.
    """
    built = Path(folder or tempfile.mkdtemp())
    library = built / "cells.so"
    if not library.is_file():
        _compile(built)
    torch.ops.load_library(library)
    return torch.ops.cells.mgu


def _compile(folder: Path) -> None:
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    extension = CppExtension("cells", [str(SOURCE)], extra_compile_args=["-O1", "-g0"])
    options = {"use_ninja": False, "no_python_abi_suffix": True}
    package = Distribution(
        {
            "name": "cells",
            "ext_modules": [extension],
            "cmdclass": {"build_ext": BuildExtension.with_options(**options)},
        }
    )
    build = package.get_command_obj("build_ext")
    build.build_lib = build.build_temp = str(folder)
    build.ensure_finalized()
    build.run()
