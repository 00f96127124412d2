"""Versions of packages."""

from importlib.metadata import version

import torch

from qtool.core.versions import DISTRIBUTION, own_version, version_of


def test_of_a_package_that_is_there_and_of_one_that_is_not() -> None:
    assert version_of("torch").startswith(torch.__version__.partition("+")[0])
    assert version_of("no-such-package-at-all") == ""


def test_of_qtool_whose_distribution_has_another_name() -> None:
    assert own_version() == version(DISTRIBUTION)
