"""The root command: help, completion, and how every command ends."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tessera.cli.app import COMMANDS, run


def test_every_command_has_help(capsys):
    """Each command in the table exists, explains itself, and imports nothing until it is used."""
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert name in text
        assert run([name, "--help"]) == 0
        assert "Usage: tessera " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["nope"], "tessera: No such command 'nope'. (see tessera --help)\n"),
        (["--nope"], "tessera: No such option '--nope'. (see tessera --help)\n"),
        (["completion"], "tessera completion: Missing argument 'SHELL'. Choose from: bash, zsh, fish (see tessera completion --help)\n"),
        (["mig", "convert"], "tessera mig convert: Missing option '--to'. Choose from: runai, mig-parted, counts (see tessera mig convert --help)\n"),
    ],
)  # fmt: skip
def test_usage(capsys, args, complaint):
    """A wrong word is answered in one line, exit 2."""
    assert run(args) == 2
    assert capsys.readouterr().err == complaint


def test_version(capsys):
    """The version is that of the package, which pyproject.toml says."""
    version = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tessera {version}\n"


@pytest.mark.parametrize("words", [[], ["mig"], ["config"], ["certs"]])
def test_a_group_without_a_command(capsys, words):
    """Its help and nothing around it, on standard error, since nothing was done."""
    run([*words, "--help"])
    text = capsys.readouterr().out
    assert run(words) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell):
    """Completion scripts for the usual shells."""
    assert run(["completion", shell]) == 0
    assert "_TESSERA_COMPLETE" in capsys.readouterr().out


def test_a_reader_that_leaves():
    """`tessera … | head` ends quietly."""
    pipe = f"{sys.executable} -m tessera config schema | head -1"
    result = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("{\n", "")


def test_help_is_light():
    """`tessera --help` imports none of what the commands need."""
    code = "import sys; from tessera.cli.app import run; run(['--help']); print(sorted(m for m in sys.modules if m in {'msgspec', 'yaml', 'grpc', 'uvloop', 'cryptography', 'asyncio'}))"  # fmt: skip
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
