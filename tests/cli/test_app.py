"""The root command: help, completion, and how every command ends."""

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from tessera.cli.app import _MEANT, COMMANDS, run, tessera
from tessera.cli.common.output import whoever_reads

ROOT = Path(__file__).parents[2]


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
        (["nope"], "tessera: No such command 'nope' (see tessera --help)\n"),
        (["capcity"], "tessera: No such command 'capcity'. Did you mean 'capacity'? (see tessera --help)\n"),
        (["mig", "aply"], "tessera mig: No such command 'aply'. Did you mean 'apply'? (see tessera mig --help)\n"),
        (["help", "mig", "shw"], "tessera mig: No such command 'shw'. Did you mean 'show'? (see tessera mig --help)\n"),
        (["mig", "check"], "tessera mig: No such command 'check'. Did you mean 'validate'? (see tessera mig --help)\n"),
        (["mig", "draw"], "tessera mig: No such command 'draw'. Did you mean 'show'? (see tessera mig --help)\n"),
        (["help", "mig", "list"], "tessera mig: No such command 'list'. Did you mean 'products'? (see tessera mig --help)\n"),
        (["config", "validate"], "tessera config: No such command 'validate'. Did you mean 'check'? (see tessera config --help)\n"),
        (["validate"], "tessera: No such command 'validate'. Did you mean 'mig validate'? (see tessera --help)\n"),
        (["diagnose"], "tessera: No such command 'diagnose'. Did you mean 'doctor'? (see tessera --help)\n"),
        (["help", "version", "x"], "tessera version: it has no subcommands (see tessera version --help)\n"),
        (["--nope"], "tessera: No such option '--nope' (see tessera --help)\n"),
        (["completion"], "tessera completion: Missing argument 'SHELL'. Choose from: bash, zsh, fish (see tessera completion --help)\n"),
        (["mig", "convert"], "tessera mig convert: Missing option '--to'. Choose from: runai, mig-parted, counts (see tessera mig convert --help)\n"),
    ],
)  # fmt: skip
def test_usage(capsys, args, complaint):
    """A wrong word is answered in one line, exit 2."""
    assert run(args) == 2
    assert capsys.readouterr().err == complaint


def test_words_for_commands():
    """Every word that stands for a command is none itself, and leads to one that there is."""
    for typed, meant in _MEANT.items():
        *group, word = typed.split()
        within: Any = tessera
        for one in group:
            within = within.get_command(click.Context(within), one)
        assert word not in within.list_commands(click.Context(within))
        for one in meant.split():
            assert one in within.list_commands(click.Context(within)), typed
            within = within.get_command(click.Context(within), one)


def test_version(capsys):
    """The version is that of the package, which pyproject.toml says."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for words in (["--version"], ["version"]):
        assert run(words) == 0
        assert capsys.readouterr().out == f"tessera {version}\n"


@pytest.mark.parametrize("words", [[], ["mig"], ["mig", "plan"], ["capacity"]])
def test_help_as_a_command(capsys, words):
    """`tessera help mig plan` is `tessera mig plan --help`, to the letter."""
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert run(["help", *words]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("words", [[], ["mig"], ["config"], ["certs"]])
def test_a_group_without_a_command(capsys, words):
    """Its help and nothing around it, on standard error, since nothing was done."""
    run([*words, "--help"])
    text = capsys.readouterr().out
    assert run(words) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("words", [[], ["mig"], ["config"], ["certs"]])
def test_a_group_lists_whole_sentences(capsys, words):
    """What a command does is said to the end, not cut where a line is full."""
    assert run([*words, "--help"]) == 0
    _, listed = capsys.readouterr().out.split("Commands:\n")
    assert "..." not in listed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell):
    """Completion scripts for the usual shells."""
    assert run(["completion", shell]) == 0
    assert "_TESSERA_COMPLETE" in capsys.readouterr().out


_POD = "admit -f examples/pods/3g.yaml --from examples/nodes/a100.yaml"
_LINES = [
    *(f"{_POD} -o {form}" for form in ("explain", "summary", "patch", "yaml", "json")),
    *(f"capacity --from examples/nodes/a100.yaml -o {form}" for form in ("table", "wide", "csv", "name", "json")),
    "capacity --from examples/nodes/a100.yaml --by namespace",
    "mig show 2g.20gb=2 --product A100-80GB",
    "mig validate 2g.20gb=3 --product A100-80GB",
    "mig convert 2g.20gb=2 --to runai --cards 2",
    "mig fit 2g.20gb=9 --product A100-80GB",
    "mig products -o wide",
    "config example",
    "config schema",
    "config reference",
    "device-plugin --config examples/simulated-a100.yaml --list",
    "dra-driver --config examples/simulated-a100.yaml --list",
    "doctor --check cdi",
    "demo --list",
    "demo --fast --story smaller",
    "completion bash",
    "version -o yaml",
    "help mig plan",
    *(f"{name} --help" for name in COMMANDS),
    "mig apply --help",
]  # fmt: skip


@pytest.mark.parametrize("words", _LINES)
def test_a_reader_that_leaves(words, monkeypatch):
    """`tessera … | head` ends quietly, with 0, wherever it was; also where the reader never read."""
    monkeypatch.chdir(ROOT)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stdout, io.StringIO() as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        assert run(words.split()) == 0
        assert "Traceback" not in stderr.getvalue()


@pytest.mark.parametrize("words", ["--help", "config schema", "capacity --from examples/cluster.yaml"])
@pytest.mark.parametrize(
    ("streams", "code", "error"),
    [
        ("<&- >/dev/null", 0, ""),
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 1, "tessera: the output cannot be written: no space left on device\n"),
    ],
)
def test_streams_that_take_nothing(words, streams, code, error):
    """A closed stream is the null device, as for kubectl; an output for which there is no room is an error in one sentence."""
    line = f"{sys.executable} -m tessera {words} {streams}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", error)


def test_a_change_goes_on_although_its_output_has_no_room(monkeypatch):
    """A full disk under the output does not end a change of a cluster half way."""
    with Path("/dev/full").open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with whoever_reads():
            click.echo("node a: changes")
            done = True
    assert done


def test_a_closed_standard_input_is_empty():
    """What reads it says so, as of any empty file."""
    line = f"{sys.executable} -m tessera capacity --from - <&-"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "tessera: standard input: no nodes and no pods\n")


@pytest.mark.parametrize("words", ["--help", "config schema", "demo --fast --story smaller"])
def test_a_process_whose_reader_leaves(words):
    """Nor does the interpreter report an error at its end."""
    pipe = f"{sys.executable} -m tessera {words} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("utf-8", "card 0  A30, 2×2g.12gb\n┌───────────────┬───────────────┐\n"),
        ("iso8859-1", "card 0  A30, 2×2g.12gb\n+---------------+---------------+\n"),
        ("cp1251", "card 0  A30, 2x2g.12gb\n+---------------+---------------+\n"),
        ("ascii", "card 0  A30, 2x2g.12gb\n+---------------+---------------+\n"),
    ],
)
def test_characters_that_a_locale_lacks(encoding, line, monkeypatch):
    """What cannot be written is written in ASCII, so that a locale other than UTF-8 gets a picture, not a traceback."""
    code, out, _ = _printed("mig show 2g.12gb=2 --product A30", encoding, monkeypatch)
    assert (code, out.startswith(line)) == (0, True)
    assert _printed("mig validate 2g.12gb=3 --product A30", encoding, monkeypatch)[::2] == (3, "")


@pytest.mark.parametrize("words", _LINES)
def test_every_command_in_plain_ascii(words, monkeypatch):
    """No command prints a character that has no ASCII which looks alike; nothing ends in another way for it."""
    monkeypatch.chdir(ROOT)
    code, out, err = _printed(words, "utf-8", monkeypatch)
    plain = _printed(words, "ascii", monkeypatch)
    assert (plain[0], plain[1].count("?"), plain[2].count("?")) == (code, out.count("?"), err.count("?"))


def _printed(words: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """How a command ends, and what it prints on streams of an encoding."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        code = run(words.split())
    printed = []
    for stream in streams:
        stream.flush()
        printed.append(stream.buffer.getvalue().decode(encoding))
    return code, printed[0], printed[1]


def test_a_process_in_the_c_locale():
    """With Python's UTF-8 mode off, the C locale is ASCII, and so is what is printed."""
    words = [sys.executable, "-m", "tessera", "mig", "show", "2g.12gb=2", "--product", "A30"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    result = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert result.stdout.startswith(b"card 0  A30, 2x2g.12gb\n+---------------+---------------+\n")


def test_help_is_light():
    """`tessera --help` imports none of what the commands need."""
    code = "import sys; from tessera.cli.app import run; run(['--help']); print(sorted(m for m in sys.modules if m in {'msgspec', 'yaml', 'grpc', 'uvloop', 'cryptography', 'asyncio'}))"  # fmt: skip
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
