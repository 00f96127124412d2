import re
import sys
from importlib.metadata import requires

import pytest

from qtool.core.errors import DataError
from qtool.core.versions import DISTRIBUTION
from qtool.frontends.optional_packages import PACKAGES, require


def test_installed_package() -> None:
    assert require("PIL.Image", "reading images", DataError).__name__ == "PIL.Image"


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError) as caught:
        require(package, "this", DataError)
    assert str(caught.value) == (
        f"this needs {package}, which is not installed; install the package {PACKAGES[package]}"
    )


def test_an_extra_requires_every_package() -> None:
    required = {
        re.split(r"[^\w-]", line)[0] for line in requires(DISTRIBUTION) or [] if "extra" in line
    }
    assert set(PACKAGES.values()) <= required
