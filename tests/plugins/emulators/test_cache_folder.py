"""The cache folder."""

from pathlib import Path

import pytest

from qtool.plugins.emulators.available import (
    arm_folder,
    cache_folder,
    sysroot,
    web_folder,
    web_version,
)


@pytest.mark.parametrize(
    ("own", "xdg", "wanted"),
    [
        ("/a/b", "/c", "/a/b/emulators"),
        ("", "/c", "/c/qtool/emulators"),
        ("", "relative", "{home}/.cache/qtool/emulators"),
        ("", "", "{home}/.cache/qtool/emulators"),
    ],
)
def test_where_the_cache_is(
    own: str, xdg: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTOOL_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(cache_folder()) == wanted.format(home=Path.home())


def test_what_is_damaged_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    assert sysroot("1.0") is None
    assert web_version() == ""
    arm_folder("1.0").mkdir(parents=True)
    (arm_folder("1.0") / "sysroot.json").write_text('{"python": "3.11"')
    assert sysroot("1.0") is None
    package = web_folder() / "node_modules/onnxruntime-web/package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "1.2.3"}')
    assert web_version() == "1.2.3"
