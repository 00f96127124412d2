"""A folder in which the examples of the help work, and the files of the sample network."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qtool.cli import main
from qtool.cli.shutdown import InternalError

from tests.quick_commands import quick_commands

ROOT = Path(__file__).parents[2]
DIGITS = ("examples.digits.network:digits_net", "--weights", "examples/digits/weights.safetensors")


@dataclass(frozen=True)
class Cli:
    """Runs qtool in this process, in a folder of its own."""

    folder: Path

    def __call__(self, *arguments: str, code: int | tuple[int, ...] = 0) -> Result:
        result = CliRunner().invoke(main, [str(a) for a in arguments], prog_name="qtool")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        codes = code if isinstance(code, tuple) else (code,)
        if result.exit_code == InternalError.exit_code not in codes:
            assert isinstance(result.exception, SystemExit)
            raise result.exception.__cause__ or result.exception  # the tests show the traceback
        assert result.exit_code in codes, result.output
        return result

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.folder.iterdir() if p.is_file()}

    def refuses(self, *arguments: str) -> str:
        """The one sentence on standard error of a call that exits with 2 and writes nothing."""
        before = self.files()
        result = self(*arguments, code=2)
        assert self.files() == before
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1
        assert result.stderr.rstrip().endswith(lines[0])
        return lines[0].removeprefix("Error: ")

    def example_of(self, command: str) -> list[str]:
        """The arguments of the example in a command's help."""
        text = self(command, "--help").output
        (example,) = re.findall(r"Example:\n((?:    .+\n)+)", text)
        words = shlex.split(example.replace("\\\n", " "))
        assert words[:2] == ["qtool", command]
        return words[1:]


def workplace(folder: Path, patch: pytest.MonkeyPatch) -> Cli:
    """In a folder beside `examples`, `calib_data` and `tests`."""
    for name in ("examples", "calib_data", "tests"):
        (folder / name).symlink_to(ROOT / name)
    patch.chdir(folder)
    return Cli(folder)


@pytest.fixture(autouse=True, scope="module")  # other tests of the process have the defaults
def quick() -> Iterator[None]:
    with quick_commands():
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The sample network's files, as the examples of `calibrate` and `convert` make them."""
    with quick_commands(), pytest.MonkeyPatch.context() as patch:
        cli = workplace(tmp_path_factory.mktemp("cli"), patch)
        for command in ("calibrate", "convert"):
            cli(*cli.example_of(command))
        return cli.files()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return workplace(tmp_path, monkeypatch)


@pytest.fixture
def sample(cli: Cli, made: dict[str, bytes]) -> Cli:
    """`cli` with digits.calib and digits.int8.onnx in its folder."""
    for name, data in made.items():
        (cli.folder / name).write_bytes(data)
    return cli
