"""What tenants write reaches the terminal as text only, whichever command prints it."""

import ast
import copy
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tests.diagnosis.clusters import node, pod
from tests.inventory.objects import LAYOUT

FORGED: Final = "forged: everything is fine"
EVIL: Final = f"\x1b]0;owned\x07\x1b[31m\x1b[2J\x1b[1A\x9b2J\u202e\r\x00{'0' * 16}:31mred\n{FORGED}"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]+m")
_WRITTEN_BY_ANYBODY: Final = {"message", "reason", "image", "component", "reportingComponent", "action", "serviceAccountName"}  # fmt: skip


def taint(value: Any, *, inside: bool = False) -> Any:
    """Put what a terminal obeys into every text that somebody else writes: messages, reasons, annotations, owners, images."""
    if isinstance(value, dict):
        return {key: taint(part, inside=inside or key in _WRITTEN_BY_ANYBODY) for key, part in value.items()}
    if isinstance(value, list):
        return [taint(part, inside=inside) for part in value]
    return value + EVIL if inside and isinstance(value, str) else value


def annotated(document: dict[str, Any], **annotations: str) -> dict[str, Any]:
    document = copy.deepcopy(document)
    document["metadata"].setdefault("annotations", {}).update(annotations)
    return document


def add_hostile_cluster(served) -> None:
    """A node whose only device is held and whose annotations are hostile, pods that wait, their Events, and a workload without pods."""
    now = time.time()
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/mig.config.state": "failed"}
    nodes = [{"kind": "Node", **node(name, {"1g.10gb": 1}, labels=labels)} for name in "abc"]
    layout = annotated(nodes[0], **{"run.ai/mig.config": LAYOUT, "nvidia.com/mig.config.reason": EVIL, "tessera.dev/devices-in-use": EVIL})  # fmt: skip
    record = written(RolloutRecord(Owner(EVIL, EVIL), Phase.CORDONED, now, now + 60, 60.0, EVIL))
    rolling = annotated(nodes[1], **{ROLLOUT: record, "run.ai/mig.config": LAYOUT})
    unreadable = annotated(nodes[2], **{ROLLOUT: EVIL, "run.ai/mig.config": LAYOUT + EVIL})
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet" + EVIL,
        "name": "web" + EVIL,
        "uid": "u1",
        "controller": True,
    }
    holder = pod("h", {"1g.10gb": 1}, on="a", metadata={"ownerReferences": [owner]})
    waiting = pod("p", {"1g.10gb": 1})
    changed = annotated(pod("c", {"1g.10gb": 1}, on="a"), **{"gpu-webhook.k8s.io/fallback": EVIL, "gpu-webhook.k8s.io/asked": EVIL})  # fmt: skip
    slip = annotated(pod("s", {"1g.10gb": 1}), **{"gpu-webhook.k8s.io/min-memory": EVIL})
    pods = [{"kind": "Pod", **document} for document in (holder, waiting, changed, slip)]
    at = moment(now)
    events = [
        {
            "kind": "Event",
            "metadata": {"name": f"e{number}", "namespace": "team", "creationTimestamp": at},
            "involvedObject": {"kind": kind, "namespace": "team", "name": name, "uid": uid},
            "type": "Warning",
            "reason": reason,
            "message": "said",
            "count": 1,
            "lastTimestamp": at,
            "firstTimestamp": at,
            "source": {"component": "default-scheduler"},
        }
        for number, (kind, name, uid, reason) in enumerate(
            [
                ("Pod", "p", "", "FailedScheduling"),
                ("Pod", "p", "", "FailedMount"),
                ("Pod", "h", "", "Failed"),
                ("Job", "rs", "u9", "FailedCreate"),
            ]
        )
    ]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": waiting["spec"]}
    workload = {
        "kind": "Job",
        "metadata": {"name": "rs", "namespace": "team", "uid": "u9"},
        "spec": {"completions": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    }
    tainted = [taint(document) for document in (*pods, *events, workload)]
    served.add(layout, rolling, unreadable, *tainted)


COMMANDS: Final = [
    *(("why", target, "-n", "team") for target in ("p", "h", "c", "s", "job/rs")),
    ("why", "p", "-n", "team", "-o", "json"),
    ("why", "-A"),
    ("why", "-n", "team", "-o", "json"),
    ("why", "p", "-n", "team", "-o", "yaml"),
    ("why", "p", "-n", "team", "-o", "jsonpath={..answer}{..message}"),
    ("doctor",),
    ("doctor", "-o", "json"),
    ("doctor", "--before-uninstall"),
    ("capacity",),
    ("capacity", "-o", "wide"),
    ("capacity", "-o", "yaml"),
    ("mig", "show", "--cluster"),
    ("mig", "validate", "--cluster"),
    ("mig", "plan"),
    ("mig", "defragment", "1g.18gb=1"),
    ("mig", "apply", "1g.18gb=4", "a", "b", "c", "--dry-run"),
    ("mig", "apply", "1g.18gb=4", "b", "--yes", "--timeout=1s"),
]


@pytest.mark.parametrize("terminal", [False, True])
def test_no_command_prints_what_a_terminal_obeys(served, command, monkeypatch, terminal):
    """Every command on a cluster full of hostile texts prints lines of text, and on a terminal Tessera's own colours; no text begins a line."""
    add_hostile_cluster(served)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    printed, hostile = "", 0
    for arguments in COMMANDS:
        if terminal:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        _, out, err = command(*arguments, "--kubeconfig", served.kubeconfig)
        is_document = arguments[-1].startswith(("yaml", "jsonpath="))
        if is_document and not terminal:
            continue  # programs get these texts as they are
        for line in _COLOUR.sub("", out + err).split("\n"):
            assert line.isprintable(), (arguments, line)
            assert is_document or not line.startswith(FORGED), (arguments, line)
        assert ("\x1b" in out + err) <= terminal, arguments
        hostile += "owned" in out + err
        printed += out
    assert ("\x1b[1m" in printed) is terminal
    assert hostile >= 5, "the hostile texts do reach what is printed"


SOURCE: Final = Path(__file__).parents[2] / "src" / "tessera"
PRINTS_ITSELF: Final = {
    "cli/common/output.py",
    "cli/completion.py",
    "cli/about.py",
}  # shells and help: texts of our own


def test_one_place_prints_for_people():
    """No other module of the commands calls click.echo, click.secho or print."""
    for path in SOURCE.rglob("*.py"):
        if str(path.relative_to(SOURCE)) in PRINTS_ITSELF:
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        printing = {"click.echo", "click.secho", "print"} & {ast.unparse(call.func) for call in calls}
        assert not printing, f"{path} prints by {printing}: use tessera.cli.common.output"
