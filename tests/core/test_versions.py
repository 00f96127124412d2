"""Versions of packages."""

from __future__ import annotations

import torch

from qtool.core.versions import version_of


def test_of_a_package_that_is_there_and_of_one_that_is_not() -> None:
    assert version_of("torch").startswith(torch.__version__.partition("+")[0])
    assert version_of("no-such-package-at-all") == ""
