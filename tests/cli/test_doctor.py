"""`tessera doctor` as a person meets it."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.cli import doctor
from tessera.cli.app import run
from tessera.cli.doctor import _poll, exit_code
from tessera.core.devices.device import Device, Edits
from tessera.doctor.examination import CHECKS
from tessera.doctor.findings import Check, CheckResult, Finding, Severity
from tessera.doctor.gather import read_cdi
from tessera.doctor.observations import Names, Observations
from tessera.kube.errors import ApiError
from tessera.protocol import cdi, yaml
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.store import Document
from tests.build import claim_document, node_document
from tests.doctor.authorities import authority
from tests.doctor.clusters import CLAIMS, admit_like_the_webhook, fill, healthy
from tests.kube.clock import FakeClock


@contextlib.contextmanager
def serving(objects: dict[kinds.ResourceType, list[Document]], folder: Path) -> Iterator[Path]:
    """A stand-in API server in a thread of its own; its kubeconfig."""
    server = ApiServer(admission=admit_like_the_webhook)
    fill(server, objects)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        cluster = {"name": "x", "cluster": {"server": server.url}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [{"name": "x", "context": {"cluster": "x"}}],
            "current-context": "x",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(document))
        yield path
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def bundle() -> bytes:
    from time import time

    return authority("now", time() + 200 * 86400.0)


def test_healthy_cluster(bundle: bytes, tmp_path: Path, capsys):
    """One line a check, and exit code 0."""
    with serving(healthy(bundle), tmp_path) as kubeconfig:
        assert run(["doctor", "--kubeconfig", str(kubeconfig)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ok       A GPU pod reaches it and is changed" in lines
    assert lines[-1] == "Nothing is wrong."


def test_problem_is_told_with_what_to_type(bundle: bytes, tmp_path: Path, capsys):
    """A problem: what it is, the command below it, a sum at the end, exit code 3."""
    objects = healthy(bundle)
    objects[kinds.NODES].append(node_document("cut", {}, annotations={"run.ai/mig.config": "x"}))
    with serving(objects, tmp_path) as kubeconfig:
        assert run(["doctor", "--kubeconfig", str(kubeconfig)]) == 3
    out = capsys.readouterr().out
    assert "PROBLEM  layouts: node cut has a MIG layout" in out
    assert "\n         $ kubectl get pods -A --field-selector spec.nodeName=cut\n" in out
    assert out.endswith("\n1 problem.\n")


@pytest.mark.parametrize(
    ("severity", "line"),
    [
        (None, "ok       No workload's pods are rejected"),
        (Severity.PROBLEM, "PROBLEM  refused: ReplicaSet team/web cannot create pods"),
        (Severity.WARNING, "warning  refused: ReplicaSet team/web cannot create pods"),
        (Severity.NOTE, "note     refused: ReplicaSet team/web cannot create pods"),
        (Severity.UNSEEN, "unseen   No workload's pods are rejected: ReplicaSet team/web cannot create pods"),
    ],
)
def test_a_finding_never_stands_under_the_title_that_it_contradicts(monkeypatch, capsys, severity, line):
    """A title says what should be so: it stands where that holds, or was not checked; a finding has the check's name."""
    (check,) = [one for one in CHECKS if one.name == "refused"]
    findings = (Finding(severity, "ReplicaSet team/web cannot create pods"),) if severity else ()
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [CheckResult(check, findings)])
    run(["doctor", "--check", "cdi"])
    assert capsys.readouterr().out.splitlines()[0] == line


def test_json_is_for_programs(bundle: bytes, tmp_path: Path, capsys):
    """The same as JSON."""
    with serving(healthy(bundle), tmp_path) as kubeconfig:
        assert run(["doctor", "--kubeconfig", str(kubeconfig), "-o", "json"]) == 0
    answers = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert answers["installed"] == {
        "check": "installed",
        "title": "The webhook is installed",
        "state": "seen",
        "ok": True,
        "findings": [],
    }
    assert (answers["cdi"]["state"], answers["cdi"]["ok"]) == ("not applicable", False)


def test_yaml_says_the_same_as_json(bundle: bytes, tmp_path: Path, capsys):
    """`-o yaml` is the same document."""
    with serving(healthy(bundle), tmp_path) as kubeconfig:
        said = []
        for output in ("json", "yaml"):
            assert run(["doctor", "--kubeconfig", str(kubeconfig), "-o", output]) == 0
            said.append(yaml.load(capsys.readouterr().out))
    assert said[0] == said[1]


def test_template_picks_from_the_document(bundle: bytes, tmp_path: Path, capsys):
    """`-o jsonpath=…` is there as for every command; the example in the help prints one line a problem."""
    objects = healthy(bundle)
    objects[kinds.NODES].append(node_document("cut", {}, annotations={"run.ai/mig.config": "x"}))
    assert run(["doctor", "--help"]) == 0
    example = capsys.readouterr().out.split("-o jsonpath='")[1].split("'")[0]
    with serving(objects, tmp_path) as kubeconfig:
        assert run(["doctor", "--kubeconfig", str(kubeconfig), "-o", f"jsonpath={example}"]) == 3
    assert [line[:25] for line in capsys.readouterr().out.splitlines()] == ["node cut has a MIG layout"]


def test_no_cluster_is_one_sentence(tmp_path: Path, capsys):
    """Without an API server there is one sentence and exit code 1, no traceback."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        "clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: x, context: {cluster: x}}]\ncurrent-context: x\n"
    )
    assert run(["doctor", "--kubeconfig", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tessera: ")
    assert len(captured.err.splitlines()) == 1


def test_files_of_a_node_are_read(tmp_path: Path):
    """What the plugin remembers and what it writes as CDI specs agree on the devices' names."""
    device = Device(
        "a", resource="example.com/thing", cdi_kind="example.com/thing", edits=Edits(env=(("X", "y"),))
    )
    (tmp_path / "devices.json").write_bytes(msgspec.json.encode([device]))
    specs = tmp_path / "cdi"
    specs.mkdir()
    for kind, document in cdi.documents([device]).items():
        (specs / f"tessera-{kind.replace('/', '_')}.json").write_bytes(cdi.encode(document))
    files, devices = read_cdi(specs, tmp_path)
    assert devices == ("example.com/thing=a",)
    assert list(files) == ["tessera-example.com_thing.json"]
    assert read_cdi(specs, tmp_path / "nowhere")[1] is None
    (tmp_path / "devices.json").write_bytes(b"[{")
    assert read_cdi(specs, tmp_path)[1] is None


def test_a_good_spec_beside_the_wrong_state_folder(tmp_path: Path, capsys):
    """A spec is called stale only by a record: where there is none, doctor says that it could not compare, exit code 1."""
    (tmp_path / "tessera-x.json").write_text('{"kind": "example.com/thing", "devices": [{"name": "a"}]}')
    assert run(["doctor", "--check=cdi", f"--cdi-dir={tmp_path}", f"--state-dir={tmp_path / 'no'}"]) == 1
    shown = capsys.readouterr().out
    assert "could not compare tessera-x.json with the plugin's devices" in shown
    assert "stale" not in shown


def test_files_of_a_node_need_no_cluster(tmp_path: Path, capsys):
    """Where only CDI specs are looked at, no API server is asked: so it works in the plugin's own pod."""
    assert run(["doctor", "--check=cdi", f"--cdi-dir={tmp_path}", f"--state-dir={tmp_path}"]) == 0
    assert capsys.readouterr().out == "ok       CDI specs are up to date\n\nNothing is wrong.\n"


def test_missing_folder_is_bad_input(bundle: bytes, tmp_path: Path, capsys):
    """A folder that is not there is said in one sentence, exit code 2."""
    with serving(healthy(bundle), tmp_path) as kubeconfig:
        assert run(["doctor", "--kubeconfig", str(kubeconfig), "--cdi-dir", str(tmp_path / "no")]) == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_single_checks(bundle: bytes, tmp_path: Path, capsys):
    """A script asks for the checks that it wants; one that does not exist is bad input."""
    with serving(healthy(bundle), tmp_path) as kubeconfig:
        arguments = ["doctor", "--kubeconfig", str(kubeconfig)]
        assert run([*arguments, "--check", "trial", "--check", "version"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 4
        assert run([*arguments, "--check", "luck"]) == 2
    assert "no check luck; there are version, installed, running" in capsys.readouterr().err


def test_before_an_uninstall(bundle: bytes, tmp_path: Path, capsys):
    """The checks that matter then, and no others: exit code 3 while a pod holds a device of the driver, 0 when none does."""
    objects = healthy(bundle)
    result = {"driver": "gpu.tessera.dev", "pool": "n1/tessera", "device": "gpu-0"}
    objects[CLAIMS] = [claim_document("c", result, namespace="team", pods=["p"])]
    with serving(objects, tmp_path) as kubeconfig:
        arguments = ["doctor", "--before-uninstall", "--kubeconfig", str(kubeconfig)]
        assert run(arguments) == 3
        out = capsys.readouterr().out
        assert out.startswith("PROBLEM  held: pod team/p holds gpu-0 of n1/tessera (claim c).")
        assert out.endswith("\n1 problem.\n")
        assert run([*arguments, "--check", "labels"]) == 0
        assert capsys.readouterr().out == "ok       Nodes keep no label\n\nNothing is wrong.\n"
        assert run([*arguments, "--check", "trial"]) == 2
        assert "no check trial; there are held, claimants, templates, labels" in capsys.readouterr().err
    objects[CLAIMS] = []
    with serving(objects, tmp_path) as kubeconfig:
        assert run(["doctor", "--before-uninstall", "--kubeconfig", str(kubeconfig)]) == 0


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        (["note", "warning"], 0),
        (["n/a"], 0),
        (["unseen"], 1),
        (["warning", "unseen"], 1),
        (["problem"], 3),
        (["unseen", "problem"], 3),
    ],
)
def test_exit_code_says_how_it_is(severities: list[str], code: int):
    """0 well, 3 problems, 1 could not run; what is known to be wrong comes first."""
    check = Check("x", "X", (), lambda seen: iter(()))
    results = [CheckResult(check, (Finding(Severity(one), "…"),)) for one in severities]
    assert exit_code([CheckResult(check, ()), *results]) == code


class _Mending:
    """A stand-in for the API server's client: what is wrong is right after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def judge(self, seen: Observations) -> list[CheckResult]:
        self.looks -= 1
        found = () if self.looks <= 0 else (Finding(Severity.PROBLEM, "not yet"),)
        return [CheckResult(Check("x", "X", (), lambda seen: iter(())), found)]

    async def get(self, path: str, query: object = None) -> bytes:
        raise ApiError(403, "Forbidden", "no")

    async def create(self, path: str, body: object, query: object = None) -> bytes:
        raise ApiError(403, "Forbidden", "no")

    async def with_retries(self, work: Any) -> None:
        raise ApiError(403, "Forbidden", "no")


@pytest.mark.parametrize(
    ("looks", "wait", "failed", "slept"),
    [(1, 0.0, False, 0), (3, 0.0, True, 0), (3, 60.0, False, 2), (1, 60.0, False, 0), (99, 10.0, True, 5)],
)
def test_wait_polls_until_all_is_well(looks: int, wait: float, failed: bool, slept: int):
    """`--wait` looks again every two seconds until all is well, and at most for so long."""
    cluster = _Mending(looks)

    async def look() -> tuple[list[CheckResult], int]:
        clock = FakeClock(auto=True)
        results = await _poll(cluster, Names(), cluster.judge, wait, clock)  # type: ignore[arg-type]
        return results, len(clock.slept)

    results, slept_times = asyncio.run(look())
    assert ([result.failed for result in results], slept_times) == ([failed], slept)


def test_every_check_is_documented():
    """docs/troubleshooting.md has a row for every check, in the order in which they are made."""
    from tessera.doctor.examination import BEFORE_UNINSTALL, CHECKS

    text = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    lines = text.rpartition("## Every check")[2].splitlines()
    rows = [line.split("|")[1].strip(" `") for line in lines if line.startswith("| `")]
    assert rows == [check.name for check in (*CHECKS, *BEFORE_UNINSTALL)]
