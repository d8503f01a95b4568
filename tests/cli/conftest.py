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
