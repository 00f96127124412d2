"""A hub id names the folder that the local Hugging Face cache has of it; nothing is downloaded."""

from pathlib import Path
from shutil import copyfile

import pytest

from qtool.core.downloads import hub_id, local_model

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def cached(cache: Path, name: str, revision: str, *files: Path) -> Path:
    """A revision as `hf download` lays it out: links to files that are named by their digest."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    for each in (snapshot, folder / "blobs", folder / "refs"):
        each.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        blob = folder / "blobs" / f"{revision}{number}"
        copyfile(file, blob)
        (snapshot / file.name).symlink_to(blob)
    (folder / "refs" / "main").write_text(revision)
    return snapshot


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config.json, and none of the variables that name a cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    ("variable", "value", "cache"),
    [
        ("HF_HUB_CACHE", "a", "a"),
        ("HUGGINGFACE_HUB_CACHE", "a", "a"),
        ("HF_HOME", "a", "a/hub"),
        ("XDG_CACHE_HOME", "a", "a/huggingface/hub"),
        ("UNRELATED", "a", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_is_that_of_huggingface_hub(
    config: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, cache: str
) -> None:
    monkeypatch.setenv(variable, str(config.parent / value))
    snapshot = cached(config.parent / cache, "acme/tiny", "f00", config)
    assert Path(local_model("acme/tiny")) == snapshot
    assert local_model("acme/other") == "acme/other"


def test_the_revision_is_that_of_main(config: Path) -> None:
    cache = config.parent / ".cache/huggingface/hub"
    first, second = (cached(cache, "acme/tiny", revision, config) for revision in ("f00", "ba7"))
    assert Path(local_model("acme/tiny")) == second
    main = cache / "models--acme--tiny/refs/main"
    main.write_text("f00\n")
    assert Path(local_model("acme/tiny")) == first
    main.unlink()
    assert local_model("acme/tiny") == "acme/tiny"  # one of two


def test_a_download_that_was_interrupted_is_no_model(config: Path) -> None:
    cached(config.parent / ".cache/huggingface/hub", "acme/tiny", "f00")
    assert local_model("acme/tiny") == "acme/tiny"


def test_a_path_wins(config: Path) -> None:
    cached(config.parent / ".cache/huggingface/hub", "acme/tiny", "f00", config)
    (config.parent / "acme/tiny").mkdir(parents=True)
    assert local_model("acme/tiny") == "acme/tiny"
    for path in ("./acme/tiny", "acme/tiny/x", "../acme", "x" * 500 + "/y"):
        assert local_model(path) == path


def test_a_folder_of_a_cache_has_the_name_of_the_model(config: Path) -> None:
    snapshot = cached(config.parent / "hub", "acme/tiny-2.5", "f00", config)
    assert hub_id(snapshot) == "acme/tiny-2.5"
    assert hub_id(config.parent) == hub_id(Path()) == ""
