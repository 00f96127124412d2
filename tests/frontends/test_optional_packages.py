from __future__ import annotations

import sys

import pytest

from qtool.core.errors import DataError
from qtool.frontends.optional_packages import EXTRAS, require


def test_what_is_there() -> None:
    assert require("PIL.Image", "reading images", DataError).__name__ == "PIL.Image"


@pytest.mark.parametrize("package", EXTRAS)
def test_what_is_missing(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError) as caught:
        require(package, "this", DataError)
    assert str(caught.value) == (
        f"this needs {package}, which is not installed: pip install 'qtool[{EXTRAS[package]}]'"
    )


def test_every_extra_is_declared() -> None:
    from importlib.metadata import metadata

    assert set(EXTRAS.values()) <= set(metadata("qtool").get_all("Provides-Extra"))
