"""What tests of commands share."""

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.app import run
from tests.kube.conftest import pytest_pyfunc_call, soon  # noqa: F401 # a hook: tests may be coroutines
from tests.kube.served import served  # noqa: F401 # a fixture


class Golden:
    """Compares a text with the file that a person has read, or writes the file again."""

    folder = Path(__file__).parents[1] / "golden"

    def __init__(self, *, write: bool) -> None:
        self._write = write

    def compare(self, name: str, text: str) -> None:
        file = self.folder / name
        if self._write:
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), "pytest --golden writes the file again"


@pytest.fixture
def golden(request):
    """The golden files; `--golden` writes them again."""
    return Golden(write=request.config.getoption("--golden"))


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files, with a short path; whatever a command leaves is in there."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # where it is kept
        yield Path(folder)


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*args, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(list(args))
        out, err = capsys.readouterr()
        return code, out, err

    runner: Any = call
    runner.folder = tmp_path
    return runner
