"""Every mistake is made in a folder of its own, next to the examples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qtool.plugins.search import candidate_files
from tests.mistakes.files import write
from tests.quick_commands import MOMENT, quick_commands

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """A command with its remedy is to run, a search with one candidate, timed in few sessions."""
    with quick_commands({**MOMENT, "--evaluations": 1}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_files, "MAX_SESSIONS", candidate_files.MIN_SESSIONS)
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the packages `examples` and `tests`."""
    for name in ("examples", "calib_data", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files that the tables name."""
    place = tmp_path_factory.mktemp("files")
    write(place)
    return place


@pytest.fixture
def here(files: Path, folder: Path) -> None:
    """The files, in the current directory."""
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)
