"""Plugins: the parts that their records name are there, and what is missing is said."""

from dataclasses import fields
from itertools import chain

import pytest

from qtool.core import plugins
from qtool.core.errors import InstallError
from qtool.core.on_use import load
from qtool.core.plugins import Plugin, parts

KINDS = [field.name for field in fields(Plugin)]
PARTS = [(kind, name, where) for kind in KINDS for name, where in parts(kind).items()]


@pytest.mark.parametrize(("kind", "name", "where"), PARTS)
def test_every_part_is_in_the_folder_of_its_plugin(kind: str, name: str, where: str) -> None:
    folders = [f for f, p in plugins.plugins().items() if name in getattr(p, kind)]
    assert [where.startswith(f"qtool.plugins.{folder}.") for folder in folders] == [True]
    assert load(where) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_has_one_plugin(kind: str) -> None:
    names = list(chain.from_iterable(getattr(p, kind) for p in plugins.plugins().values()))
    assert len(names) == len(set(names)) > 0


def test_what_no_plugin_has_is_not_installed() -> None:
    with pytest.raises(InstallError, match="x, one of the functions of plugins, is a part"):
        plugins.function("x")
