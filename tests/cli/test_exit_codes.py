"""How commands end: each by an `ExitCode`, and each error as its golden table has it."""

import inspect
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tessera.cli.app import run, tessera
from tessera.cli.common.exit_codes import MEANINGS, ExitCode
from tests.cli.conftest import Golden

ROOT = Path(__file__).parents[2]
# commands whose answer may be no; docs/reference.md has the same table
ANSWERS = {
    "admit",
    "capacity",
    "certs show",
    "doctor",
    "mig defragment",
    "mig fit",
    "mig plan",
    "mig validate",
}


def commands(
    group: click.Group = tessera, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree, by the words that name it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


TREE = dict(commands())


@pytest.mark.parametrize("name", TREE)
def test_every_command_ends_by_a_named_code(name):
    """A command returns an `ExitCode`, or nothing, which is `DONE`."""
    callback: Any = TREE[name].callback
    assert typing.get_type_hints(inspect.unwrap(callback))["return"] in (ExitCode, type(None))


def test_every_answer_is_declared():
    """The help of a command says when its answer is no, and the reference lists the same commands."""
    declared = {name for name, command in TREE.items() if f"xit code {ExitCode.NO}:" in (command.help or "")}
    reference = (ROOT / "docs/reference.md").read_text().partition("## Exit codes")[2]
    listed = [line.split("`")[1] for line in reference.splitlines() if line.startswith("| `")]
    assert declared == ANSWERS == {cell.partition(" --")[0] for cell in listed}


def test_the_reference_has_every_exit_code():
    """The table of the reference is the one that `tessera --help` prints."""
    text = (ROOT / "docs/reference.md").read_text().partition("## Exit codes")[2]
    assert [line for line in text.splitlines() if line[:3] in {f"| {digit}" for digit in range(10)}] == [
        f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()
    ]


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/mig-3g.40gb: 1}}}]}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: gpu-1, labels: {nvidia.com/gpu.product: NVIDIA-H200}}\nstatus: {allocatable: {nvidia.com/mig-2g.35gb: 2}}\n"
FILES = {
    "pod.yaml": POD,
    "nodes.yaml": NODE,
    "plain.yaml": NODE.replace("nvidia.com/mig-2g.35gb", "cpu"),
    "text.yaml": "just a text\n",
    "broken.yaml": "a: [\n",
    "config.yaml": "mode: loud\n",
    "empty.yaml": "",
    "other": '{"apiVersion": "v1", "kind": "Config", "current-context": "x"}',
}
LINES = """
nope
capacity --nope
capacity --nodes nodes.yaml
demo --nodes nodes.yaml
doctor -n gpu-webhook
doctor --name gpu-webhook
doctor --webhook-namespace gpu-webhook
mig show nodes.yaml --config all-balanced
why -n
mig shw
mig convert 2g.20gb=1
help version x
completion tcsh
admit
admit -f nosuch.yaml --from nodes.yaml
admit -f text.yaml --from nodes.yaml
admit -f broken.yaml --from nodes.yaml
admit -f pod.yaml --from empty.yaml
admit -f - --from -
admit -f pod.yaml --from nodes.yaml --config config.yaml
admit -f pod.yaml --from nodes.yaml -o xml
admit -f pod.yaml --from plain.yaml
capacity --from nosuch.yaml
capacity --from nodes.yaml gpu-9
capacity --from nodes.yaml --fail-below 2g.35gb
capacity --from nodes.yaml --fail-below 2g.35gb=4
capacity --from nodes.yaml -o jsonpath={.nodes
capacity --from nodes.yaml -l a=b=c
capacity --from nodes.yaml --sort-by size
capacity
mig validate 3g.71gb --product H200
mig validate 3g.71gb=2,1g.18gb=1 --product H200
mig validate 3g.71gb=2 --product V100
mig show 3g.71gb=3 --product H200
mig fit 9g.99gb=5 --product H200
mig fit 3g.71gb=3 --product H200 --cards 1
mig fit 3g.71gb=3
mig fit 3g.71gb=3 --product H200 -o operator
mig fit 3g.71gb=3 --product H200 --cards many
mig plan --from-pending
mig plan --defragment 3g.71gb=1
mig plan --product H200
mig plan --yes
mig plan --apply --from nodes.yaml
mig plan --apply -o json
mig apply 3g.71gb=2
mig apply 3g.71gb=2 gpu-1 -l pool=a
mig apply 3g.71gb=2 gpu-1
mig apply 3g.71gb=2 gpu-1 --yes --timeout 90
mig products T4
doctor --check luck
doctor --check cdi --cdi-dir nosuch
doctor --kubeconfig unreachable
doctor --kubeconfig other
why svc/web
why train --kubeconfig empty.yaml
why train --kubeconfig nosuch --context y
why train --kubeconfig served
why train --kubeconfig served --as-group team
certs show --kubeconfig served
controller --log-level loud
webhook --tls-cert only.pem
webhook --listen 8443
device-plugin --config nosuch.yaml --list
config check config.yaml
demo --story luck
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Any) -> Any:
    """A folder with files that are wrong, and kubeconfigs of a cluster that answers and of one that does not."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": "/nowhere", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, text in FILES.items():
        Path(name).write_text(text)
    document = json.loads(Path(served.kubeconfig).read_text())
    Path("served").write_text(json.dumps(document))
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    Path("unreachable").write_text(json.dumps(document))
    return served


def test_errors(stage: Any, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code and standard error of each mistake are those that a person has read."""
    blocks = []
    for line in LINES.strip().splitlines():
        with Path(os.devnull).open(encoding="utf-8") as stdin, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            code = run(line.split())
        error = capsys.readouterr().err.replace(stage.server.url, "http://served")
        blocks.append(f"$ tessera {line}\nexit code {code:d}\n{error}")
    golden.compare("errors.txt", "\n".join(blocks))
