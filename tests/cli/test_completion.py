"""Completion as a person meets it: a real bash, and the Tab key."""

import os
import pty
import select
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tessera.cli.app import run
from tessera.cli.completion import kubectl
from tessera.core.mig.geometry import product_named
from tessera.serving.http_messages import Response
from tessera.simulation.control_plane.kinds import NAMESPACES
from tests.inventory.objects import OBJECTS

ROOT = Path(__file__).parents[2]
DEADLINE = 20.0
PROMPT = "ready> "


class Shell:
    """A bash at a terminal of its own, where `tessera` is the one under test."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        program = folder / "bin" / "tessera"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tessera "$@"\n')
        program.chmod(0o755)
        self._seen = ""
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "src"),
                "PS1": PROMPT,
                "TERM": "dumb",
                "INPUTRC": "/dev/null",
            },
        )
        os.close(inside)

    def source(self) -> None:
        """Do as the help says."""
        self._until(PROMPT)
        self._type("bind 'set bell-style none'; source <(tessera completion bash); echo so''urced\n")
        self._until("sourced")
        self._until(PROMPT)

    def completed(self, line: str, expected: str) -> None:
        """Type a line and Tab; what stands there then is as expected."""
        self._type(line + "\t")
        self._until(expected)
        self._type("\x15")  # away with the line
        self._type("echo ne''xt\n")
        self._until("next\r\n")
        self._until(PROMPT)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _until(self, expected: str) -> None:
        end = time.monotonic() + DEADLINE
        while expected not in self._seen:
            assert select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0], self._seen
            self._seen += os.read(self._terminal, 1024).decode()
        self._seen = self._seen.partition(expected)[2]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def shell(tmp_path):
    """A shell in a folder with a few files."""
    (tmp_path / "examples").mkdir()
    for name in ("pods.yaml", "nodes.yaml"):
        (tmp_path / "examples" / name).write_text("")
    one = Shell(tmp_path)
    try:
        one.source()
        yield one
    finally:
        one.close()


def test_files_are_completed(shell):
    """Where a file is wanted, the shell offers its own; so it does for arguments that may be one."""
    shell.completed("tessera admit -f examples/po", "examples/pods.yaml ")
    shell.completed("tessera admit --from exam", "examples/")
    shell.completed("tessera config check examples/n", "examples/nodes.yaml ")
    shell.completed("tessera mig validate examples/n", "examples/nodes.yaml ")
    shell.completed("tessera capacity --from examples/p", "examples/pods.yaml ")


def test_names_are_completed(shell):
    """Commands, options, and the values of options that have a list of them."""
    shell.completed("tessera cap", "tessera capacity ")
    shell.completed("tessera demo --story small", "--story smaller ")
    shell.completed("tessera mig show --product h200-", "H200-70GB ")


@pytest.fixture
def answers(monkeypatch, capsys):
    """What the program tells bash for a line whose last word is not finished; it is told nothing else."""

    def ask(*words, **more):
        monkeypatch.setenv("COMP_WORDS", "\n".join(("tessera", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_TESSERA_COMPLETE", "bash_complete")
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            run([])
        out, err = capsys.readouterr()
        assert (left.value.code, err) == (0, "")
        return out.split()

    return ask


def test_lists(answers):
    """Checks and products come from where they are kept, and every product that is offered is understood."""
    assert "plain,cdi" in answers("doctor", "--check", "")
    offered = [line.removeprefix("plain,") for line in answers("mig", "fit", "1g.18gb=1", "--product", "")]
    assert "H200" in offered
    assert "RTX-PRO-6000-Blackwell" in offered
    for name in offered:
        product_named(name)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("capacity", "-o", "js"), ["json", "jsonpath="]),
        (("capacity", "--sort-by", "al"), ["allocatable", "allocated"]),
        (("capacity", "--resource", "2g.1"), ["2g.10gb", "2g.12gb", "2g.12gb+me"]),
        (("capacity", "--fail-below", "g"), ["gpu"]),
        (("mig", "validate", "7g.141gb=1,4g.7"), ["7g.141gb=1,4g.71gb=", "7g.141gb=1,4g.72gb="]),
        (("mig", "apply", "4g.71"), ["4g.71gb="]),
        (("help", "mig", "p"), ["plan", "products"]),
        (("help", "cap"), ["capacity"]),
        (("help", "capacity", ""), []),
    ],
)
def test_names_that_are_known(answers, words, offered):
    """Forms, fields, profiles and commands come from where they are kept."""
    assert answers(*words) == [f"plain,{one}" for one in offered]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("capacity", "sim"), ["sim-0", "sim-1"]),
        (("mig", "show", "--cluster", "v"), ["v100"]),
        (("mig", "show", "v"), ["v100"]),
        (("mig", "apply", "1g.10gb=1", "sim-0", "p"), ["plain"]),
        (("capacity", "--pods", "-n", "m"), ["ml"]),
        (("certs", "show", "--tessera-namespace", "d"), ["default"]),
        (("why", "-n", "ml", "migl"), ["miglayout/", "miglayouts/"]),
        (("why", "miglayout/"), ["miglayout/inference", "miglayout/training"]),
        (("why", "miglayouts.tessera.dev/inf"), ["miglayouts.tessera.dev/inference"]),
        (("why", "svc/"), []),
    ],
)
def test_names_that_a_cluster_has(answers, served, words, offered):
    """Nodes, namespaces and MigLayouts of the cluster that the line names."""
    served.add(*OBJECTS[:-1])
    served.add(*({"kind": "MigLayout", "metadata": {"name": name}} for name in ("inference", "training")))
    for name in ("default", "ml"):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        served.call(lambda space=space: served.server.store.create(NAMESPACES, space))
    first = 2 if words[0] in ("mig", "certs") else 1
    line = (*words[:first], "--kubeconfig", served.kubeconfig, *words[first:])
    assert answers(*line) == [f"plain,{one}" for one in offered]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"items":["\xff"]}'])
def test_a_cluster_that_sends_junk(answers, served, body):
    """What cannot be read is offered to no shell, and no traceback is either."""
    served.call(lambda: setattr(served.server, "intercept", lambda _: Response(body)))
    assert answers("capacity", "--kubeconfig", served.kubeconfig, "sim") == []


def test_contexts(answers, served):
    """Contexts of the kubeconfig that the line or the environment names."""
    assert answers("capacity", "--kubeconfig", served.kubeconfig, "--context", "t") == ["plain,test"]
    assert answers("doctor", "--context", "t", KUBECONFIG=served.kubeconfig) == ["plain,test"]


def test_no_cluster_no_noise(answers, tmp_path):
    """Where there is no cluster, nothing is offered and nothing is said."""
    nowhere = str(tmp_path / "nowhere")
    for words in (("capacity", ""), ("capacity", "--pods", "-n", ""), ("capacity", "--context", "")):
        assert answers(*words, KUBECONFIG=nowhere) == []
    (tmp_path / "broken").write_text("{")
    assert answers("capacity", "--context", "", KUBECONFIG=str(tmp_path / "broken")) == []


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["capac"], ["capacity\tShow what nodes have, what pods hold, and what is free.", ":4"]),
        (["mig", "show", "--product", "H200"], ["H200", "H200-70GB", ":4"]),
        (["admit", "-f", "x"], [":0"]),
        (["version", "nothing"], [":4"]),
    ],
)
def test_kubectl_asks(capsys, monkeypatch, words, lines):
    """`kubectl tessera …` is completed in the words of kubectl's own completion: values, help, and whether files will do."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-tessera", *words])
    kubectl()
    assert capsys.readouterr().out.splitlines() == lines


def test_kubectl_finds_it():
    """The program is installed under the name that kubectl looks for."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl_complete-tessera"] == f"{kubectl.__module__}:{kubectl.__name__}"


@pytest.mark.parametrize(
    "words",
    [
        ("admit", "--config"), ("capacity", "--kubeconfig"), ("dashboard", "--config"),
        ("demo", "--own-nodes"), ("device-plugin", "--config"), ("mig", "fit"), ("mig", "plan", "--from"),
        ("webhook", "--tls-cert"), ("webhook", "--kubeconfig"),
    ],
)  # fmt: skip
def test_the_shell_is_asked_for_files(answers, words):
    """Every option and argument that names a file says so."""
    assert answers(*words, "x") == ["file,x"]
