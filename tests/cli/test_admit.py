"""`tessera admit`: the stories, as a person would run them."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tessera.cli.app import run
from tessera.protocol import yaml
from tests.protocol.dra.samples import class_, device, slice_

EXAMPLES = Path(__file__).parents[2] / "examples"
NODES, PODS = EXAMPLES / "nodes", EXAMPLES / "pods"
DEFAULTS = "decided with default values: ConfigMap gpu-webhook/gpu-webhook is not {}\n"
NOT_IN_FILES = DEFAULTS.format("among the files")


@pytest.fixture
def tessera(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        code = run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("centre", "resource", "warning"),
    [
        ("medium", "nvidia.com/mig-3g.40gb", ""),
        ("h200", "nvidia.com/mig-2g.35gb", "Warning: GPU fallback 3g.40gb->2g.35gb: no node that this pod can use offers 3g.40gb as asked\n"),
        ("a100", "nvidia.com/mig-2g.20gb", "Warning: GPU fallback 3g.40gb->2g.20gb: no node that this pod can use offers 3g.40gb as asked\n"),
        ("v100", "nvidia.com/gpu", "Warning: GPU fallback 3g.40gb->gpu: no node that this pod can use offers 3g.40gb as asked\n"),
    ],
)  # fmt: skip
def test_data_centres_of_different_cards(tessera, centre, resource, warning):
    """One YAML, four data centres: each gives what it has."""
    code, out, err = tessera("admit", "-f", PODS / "3g.yaml", "--from", NODES / f"{centre}.yaml")
    limits = yaml.load(out)["spec"]["containers"][0]["resources"]["limits"]
    assert (code, {name: int(count) for name, count in limits.items()}) == (0, {resource: 1})
    assert err == warning + NOT_IN_FILES


def test_injection(tessera):
    """The mixed pod gets 7 CPUs and 14Gi."""
    code, out, _ = tessera("admit", "-f", PODS / "injection.yaml", "--from", NODES / "v100.yaml", "--config", EXAMPLES / "config.yaml", "-o", "json")  # fmt: skip
    resources = json.loads(out)["spec"]["containers"][0]["resources"]
    assert code == 0
    assert resources["limits"] == {
        "nvidia.com/gpu": "2",
        "cpu": "7",
        "memory": "14Gi",
        "nvidia.com/shm": "2Gi",
    }


def test_rejected(tessera):
    """A pod for which nothing fits: exit 3, the reason on standard error, nothing on standard output."""
    Path("none.yaml").write_text("kind: Node\nmetadata: {name: cpu-1}\n")
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", "--from", "none.yaml")
    assert (code, out) == (3, "")
    assert err.startswith("Pod default/infer: rejected: asked for nvidia.com/mig-2g.20gb: 1, and no node")


def test_a_rejection_is_told_once(tessera):
    """With the whole reasoning it is part of that, as a warning is; the exit code says it too."""
    Path("none.yaml").write_text("kind: Node\nmetadata: {name: cpu-1}\n")
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", "--from", "none.yaml", "-o", "explain")
    assert (code, err) == (3, "")
    assert "decision    rejected: asked for nvidia.com/mig-2g.20gb: 1, and no node" in out


def test_objects_without_pods(tessera):
    """What Tessera finds no pod in is said to pass where decisions are reported, and passes elsewhere."""
    texts = [
        "kind: PyTorchJob\nmetadata:\n  name: d\n",
        "kind: ConfigMap\nmetadata: 5\n",
        (PODS / "2g.yaml").read_text(),
    ]
    Path("all.yaml").write_text("---\n".join(texts))
    code, out, err = tessera("admit", "-f", "all.yaml", "--from", NODES / "h200.yaml", "-o", "explain")
    assert (code, err) == (0, "")
    assert out.startswith(
        "PyTorchJob d: no pod template in it; passes as it is\n\n"
        "ConfigMap (no name): no pod template in it; passes as it is\n\n"
        "Pod default/infer\n"
    )
    Path("job.yaml").write_text(texts[0])
    assert tessera("admit", "-f", "job.yaml", "--from", NODES / "h200.yaml") == (0, texts[0], NOT_IN_FILES)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kind: List\nitems: []\n"])
def test_nothing_to_decide(tessera, text):
    """Files without objects are what a kubectl that failed leaves behind: bad input, not a decision."""
    Path("empty.yaml").write_text(text)
    for output in ("yaml", "explain"):
        assert tessera(
            "admit", "-f", "empty.yaml", "--from", NODES / "small.yaml", "-o", output
        ) == (2, "", "tessera: empty.yaml: no objects\n")  # fmt: skip
    assert tessera(
        "admit", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml", "--from", "empty.yaml"
    ) == (
        2,
        "",
        "tessera: empty.yaml: no nodes\n",
    )


@pytest.mark.parametrize("text", ["kind: List\nitems: []\n", '{"kind": "PodList", "items": []}'])
def test_no_pods_are_counted_alike(tessera, text):
    """An empty list of pods is counted as those of a cluster without pods are; an empty file is none."""
    nodes = ("--from", NODES / "small.yaml", "-o", "summary")
    Path("none.yaml").write_text(text)
    code, out, _ = tessera("admit", "-f", "none.yaml", *nodes)
    assert (code, out) == (0, "0 pods, 0 of them ask for GPUs: 0 would be changed, 0 would be rejected\n")
    Path("none.yaml").write_text("")
    assert tessera("admit", "-f", "none.yaml", *nodes) == (2, "", "tessera: none.yaml: no objects\n")


def test_namespaces_are_no_nodes(tessera):
    """Namespaces alone are not a cluster."""
    Path("ns.yaml").write_text("kind: Namespace\nmetadata: {name: team}\n")
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", "--from", "ns.yaml")
    assert (code, out, err) == (2, "", "tessera: ns.yaml: no nodes\n")


def test_standard_input_is_named(tessera, monkeypatch):
    """Complaints call standard input by its name."""
    Path("bad.yaml").write_text("metadata: {name: x}")
    with Path("bad.yaml").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, _, err = tessera("admit", "-f", "-", "--from", NODES / "small.yaml")
    assert (code, err) == (2, "tessera: standard input: kind: missing; expected a Kubernetes object\n")


def test_many_documents(tessera, monkeypatch):
    """Standard input, several documents and Lists: everything comes out again, what is no pod as it was."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    items = [
        service,
        {"apiVersion": "v1", "kind": "List", "items": [yaml.load((PODS / "2g.yaml").read_text())]},
    ]
    Path("all.yaml").write_text("---\n".join(map(yaml.dump, items)))
    with Path("all.yaml").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, _ = tessera("admit", "-f", "-", "--from", NODES / "small.yaml", "-o", "json")
    listed = json.loads(out)
    assert code == 0
    assert (listed["kind"], [one["kind"] for one in listed["items"]]) == ("List", ["Service", "Pod"])
    assert listed["items"][0] == service
    words = ("admit", "-f", "all.yaml", "--from", NODES / "small.yaml", "-o", "jsonpath={.items[*].kind}")
    assert tessera(*words)[:2] == (0, "Service Pod")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ["spec", "template"]), ("StatefulSet", ["spec", "template"]), ("DaemonSet", ["spec", "template"]),
        ("ReplicaSet", ["spec", "template"]), ("Job", ["spec", "template"]), ("CronJob", ["spec", "jobTemplate", "spec", "template"]),
    ],
)  # fmt: skip
def test_workloads(tessera, kind, path):
    """A workload's pod template is admitted as its pod; nothing else of it moves; the patch is for the workload."""
    pod = {"spec": yaml.load((PODS / "2g.yaml").read_text())["spec"]}
    document = pod
    for step in reversed(path):
        document = {step: document}
    document = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "w"}, **document}
    Path("w.yaml").write_text(yaml.dump(document))
    code, out, _ = tessera("admit", "-f", "w.yaml", "--from", NODES / "small.yaml", "-o", "json")
    after = template = json.loads(out)
    for step in path:
        template = template[step]
    assert code == 0
    assert template["metadata"] == {
        "annotations": {
            "gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb",
            "gpu-webhook.k8s.io/asked": '{"main":{"nvidia.com/mig-2g.20gb":"1"}}',
        }
    }
    assert template["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    assert after["metadata"] == {"name": "w"}
    code, out, _ = tessera("admit", "-f", "w.yaml", "--from", NODES / "small.yaml", "-o", "patch")
    assert all(operation["path"].startswith("/" + "/".join(path)) for operation in json.loads(out))


def test_a_workload_with_several_templates(tessera):
    """Each of its pods is decided about at its place, and one that is rejected rejects the whole."""
    job = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  tasks:
  - {name: a, template: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/mig-2g.20gb: 1}}}]}}}
  - {name: b, template: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/mig-2g.20gb: 1}}}]}}}
"""
    Path("job.yaml").write_text(job)
    code, out, err = tessera("admit", "-f", "job.yaml", "--from", NODES / "small.yaml", "-o", "json")
    tasks = json.loads(out)["spec"]["tasks"]
    limits = [one["template"]["spec"]["containers"][0]["resources"]["limits"] for one in tasks]
    assert (code, limits) == (0, [{"nvidia.com/mig-1g.10gb": "1"}] * 2)
    for place in (0, 1):  # of several warnings each says whose it is
        assert (
            f"Warning: Job default/train, spec.tasks[{place}].template: GPU fallback 2g.20gb->1g.10gb" in err
        )
    _, out, _ = tessera("admit", "-f", "job.yaml", "--from", NODES / "small.yaml", "-o", "explain")
    assert out.count("Job default/train, spec.tasks[1].template\n  asks for ") == 1
    Path("job.yaml").write_text(job.replace("mig-2g.20gb: 1", "mig-2g.20gb: 99", 1))
    code, out, err = tessera("admit", "-f", "job.yaml", "--from", NODES / "small.yaml")
    assert (code, out) == (3, "")
    assert err.startswith("Job default/train, spec.tasks[0].template: rejected: asked for")


def test_namespaces(tessera):
    """A Namespace among the documents counts: its label exempts, its annotations hold."""
    Path("ns.yaml").write_text("kind: Namespace\nmetadata: {name: team, labels: {gpu-webhook: disabled}}\n")
    code, out, err = tessera(
        "admit",
        "-f",
        PODS / "2g.yaml",
        "-f",
        "ns.yaml",
        "--from",
        NODES / "small.yaml",
        "-n",
        "team",
        "-o",
        "patch",
    )
    assert (code, out, err) == (0, "[]\n", NOT_IN_FILES)


def test_admitting_twice_is_admitting_once(tessera):
    """Admitting the output once more changes nothing."""
    _, out, _ = tessera("admit", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml")
    Path("once.yaml").write_text(out)
    code, again, err = tessera("admit", "-f", "once.yaml", "--from", NODES / "small.yaml")
    assert (code, again, err) == (0, out, NOT_IN_FILES)


def test_explain(tessera):
    """What was asked, which nodes counted and which did not and why, each step, and the change."""
    nodes = ["small", "v100", "tainted"]
    Path("tainted.yaml").write_text(
        "kind: Node\nmetadata: {name: other}\nspec: {taints: [{key: team, value: b, effect: NoSchedule}]}\n"
        'status: {allocatable: {nvidia.com/mig-2g.20gb: "3"}}\n'
    )
    files = [("--from", NODES / f"{n}.yaml" if n != "tainted" else "tainted.yaml") for n in nodes]
    code, out, err = tessera(
        "admit", "-f", PODS / "2g.yaml", *[part for file in files for part in file], "-o", "explain"
    )
    assert (code, err) == (0, "")
    assert (
        out
        == """\
Pod default/infer
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  nodes       2 of 4 nodes usable, 3 with GPUs
              ✓ small-1  1g.10gb ×28
              ✓ v100-1   gpu ×8
              ✗ other    2g.20gb ×3  taint team=b:NoSchedule is not tolerated
              - cpu-1    no GPU
  candidates  2g.20gb  as asked     not offered
              1g.10gb  smaller      offered, up to 28 a node  ← chosen
              gpu      a whole GPU  offered, up to 8 a node
  decision    admitted with a change: 2g.20gb is not offered, 1g.10gb is the first that is
  warning     GPU fallback 2g.20gb->1g.10gb: no node that this pod can use offers 2g.20gb as asked
  change      @@ -2,6 +2,9 @@
               kind: Pod
               metadata:
                 name: infer
              +  annotations:
              +    gpu-webhook.k8s.io/fallback: 2g.20gb->1g.10gb
              +    gpu-webhook.k8s.io/asked: '{"main":{"nvidia.com/mig-2g.20gb":"1"}}'
               spec:
                 containers:
                 - name: main
              @@ -11,4 +14,4 @@
                   - infinity
                   resources:
                     limits:
              -        nvidia.com/mig-2g.20gb: 1
              +        nvidia.com/mig-1g.10gb: '1'

decided with default values: ConfigMap gpu-webhook/gpu-webhook is not among the files
"""
    )


@pytest.mark.parametrize(
    ("config", "metadata", "expected"),
    [
        (
            "fallback: {downgrades: false, minMemory: 15Gi}",
            {"gpu-webhook.k8s.io/fallback-policy": "smaller"},
            """\
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  rules       fallback.downgrades: false
              the pod's fallback-policy is `smaller`
              at least 15Gi (fallback.minMemory)
  nodes       3 of 3 nodes usable, 3 with GPUs
              ✓ small-1, small-2  1g.10gb ×28
              ✓ three             3g.30gb ×1
  candidates  2g.20gb  as asked     not offered
              1g.10gb  smaller      forbidden by fallback.downgrades: false
              3g.30gb  larger       forbidden: the pod's fallback-policy is `smaller`
              gpu      a whole GPU  not offered
  decision    rejected: asked for""",
        ),
        (
            "",
            {"gpu-webhook.k8s.io/fallback-policy": "never"},
            """\
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  rules       the pod's fallback-policy is `never`
  nodes       3 of 3 nodes usable, 3 with GPUs
              ✓ small-1, small-2  1g.10gb ×28
              ✓ three             3g.30gb ×1
  candidates  2g.20gb  as asked     not offered
              1g.10gb  smaller      forbidden: the pod's fallback-policy is `never`
              3g.30gb  larger       forbidden: the pod's fallback-policy is `never`
              gpu      a whole GPU  forbidden: the pod's fallback-policy is `never`
  decision    admitted as it is: asked for""",
        ),
        (
            "fallback: {enabled: false}",
            {},
            """\
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  rules       no fallback (fallback.enabled: false)
  nodes       3 of 3 nodes usable, 3 with GPUs
              ✓ small-1, small-2  1g.10gb ×28
              ✓ three             3g.30gb ×1
  decision    admitted as it is: fallback is disabled
""",
        ),
        (
            "fallback: {chains: {2g.20gb: [gpu, 1g.10gb]}, autoscaled: [7g.80gb], unmatched: admit}",
            {"gpu-webhook.k8s.io/min-memory": "5Gi"},
            """\
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  rules       at least 5Gi (the pod's min-memory)
              2g.20gb becomes gpu, 1g.10gb (fallback.chains)
              7g.80gb can come (fallback.autoscaled)
              the webhook admits unmatched pods (fallback.unmatched: admit)
  nodes       3 of 3 nodes usable, 3 with GPUs
              ✓ small-1, small-2  1g.10gb ×28
              ✓ three             3g.30gb ×1
  candidates  2g.20gb  as asked     not offered
              gpu      a whole GPU  not offered
              1g.10gb  smaller      offered, up to 28 a node  ← chosen
  decision    admitted with a change: 2g.20gb""",
        ),
    ],
)
def test_explain_says_what_holds(tessera, config, metadata, expected):
    """Which settings hold and whose they are; every candidate with its reason, and none chosen where none is."""
    pod = yaml.load((PODS / "2g.yaml").read_text())
    pod["metadata"]["annotations"] = metadata
    Path("pod.yaml").write_text(yaml.dump(pod))
    Path("config.yaml").write_text(config)
    node = "kind: Node\nmetadata: {{name: {}}}\nstatus: {{allocatable: {{nvidia.com/mig-{}: '{}'}}}}\n"
    nodes = [("small-1", "1g.10gb", 28), ("small-2", "1g.10gb", 28), ("three", "3g.30gb", 1)]
    Path("nodes.yaml").write_text("---\n".join(node.format(*one) for one in nodes))
    _, out, _ = tessera(
        "admit", "-f", "pod.yaml", "--from", "nodes.yaml", "--config", "config.yaml", "-o", "explain"
    )
    assert out.startswith("Pod default/infer\n" + expected)


def test_explain_an_exempt_namespace(tessera):
    """Where nothing is decided there are no candidates."""
    Path("ns.yaml").write_text("kind: Namespace\nmetadata: {name: team, labels: {gpu-webhook: disabled}}\n")
    _, out, _ = tessera("admit", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml", "--from", "ns.yaml", "-n", "team", "-o", "explain")  # fmt: skip
    assert "candidates" not in out
    assert "chosen" not in out


def test_capacity_tells_offline(tessera):
    """Offline there is no past: what a node has and cannot give now counts."""
    Path("nodes.yaml").write_text(
        "kind: Node\nmetadata: {name: n}\nstatus: {capacity: {nvidia.com/mig-2g.20gb: 8}, "
        "allocatable: {nvidia.com/mig-2g.20gb: 0, nvidia.com/mig-1g.10gb: 4}}\n"
    )
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", "--from", "nodes.yaml", "-o", "patch")
    assert (code, out, err) == (0, "[]\n", NOT_IN_FILES)


def test_dra_offline(tessera):
    """DeviceClasses and ResourceSlices count wherever they stand among the files, and the explanation names DRA."""
    resource = "nvidia.com/mig-2g.20gb"
    Path("nodes.yaml").write_text("kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: 8}}\n")
    Path("slices.json").write_text(json.dumps(slice_("s", device("a", profile="2g.20gb"))))
    Path("classes.json").write_text(
        json.dumps(class_("two", "device.driver == 'gpu.example.com'", resource=resource))
    )
    files = [part for name in ("slices.json", "classes.json", "nodes.yaml") for part in ("--from", name)]
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", *files, "-o", "explain")
    assert (code, err) == (0, "")
    assert "2g.20gb ×1 (DRA)" in out
    assert "offered, up to 1 a node, through DRA  ← chosen" in out
    assert "admitted as it is" in out
    Path("classes.json").write_text(json.dumps(class_("odd", "device.odd()", resource=resource)))
    code, _, err = tessera("admit", "-f", PODS / "2g.yaml", *files, "-o", "patch")
    assert code == 0
    assert err.startswith(
        "Warning: device class odd: its selectors cannot be evaluated, so all devices count: "
    )
    Path("slices.json").write_text('{"kind": "ResourceSlice", "metadata": {"name": "s"}}')
    code, _, err = tessera("admit", "-f", PODS / "2g.yaml", *files)
    assert (code, err) == (2, "tessera: slices.json: ResourceSlice s: object missing required field spec\n")


TWO_AND_ONE = [
    class_(name, f"device.attributes['gpu.example.com'].profile == '{profile}'", resource=f"nvidia.com/mig-{profile}")
    for name, profile in (("two", "2g.20gb"), ("one", "1g.10gb"))
]  # fmt: skip
DEVICES = slice_("s", device("a", profile="2g.20gb"), device("b", profile="1g.10gb"))
LEASE = "kind: Lease\nmetadata: {{name: {}}}\nspec: {{holderIdentity: '{}'}}\n"
ASSUMED = "tessera controller is taken to be running ({}): requests become claims\n"
UNAVAILABLE = "Warning: GPU request is not a claim: tessera controller does not renew its Lease; it makes the templates\n"
NO_TICKET = (
    "the pods are shown without a ticket, which only the webhook can add: create them as you wrote them\n"
)


@pytest.mark.parametrize(
    ("lease", "claims", "told"),
    [
        ("", True, ASSUMED.format("its Lease is not among the files")),
        (LEASE.format("node-1", "node-1"), True, ASSUMED.format("its Lease is not among the files")),
        (LEASE.format("tessera-controller", "me"), True, ""),
        (LEASE.format("tessera-controller", ""), False, ""),
    ],
    ids=["no lease", "another lease", "held", "given up"],
)
def test_whether_the_controller_is_at_work(tessera, lease, claims, told):
    """By its Lease among the files; without it that is assumed, and said where it matters. No ticket is printed, which is said."""
    Path("c.yaml").write_text("fallback: {dra: first-available}\n")
    node = "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: 8}}\n"
    Path("nodes.yaml").write_text("---\n".join(filter(None, (node, lease))))
    Path("dra.json").write_text(json.dumps({"kind": "List", "items": [*TWO_AND_ONE, DEVICES]}))
    args = (
        "admit",
        "-f",
        PODS / "2g.yaml",
        "--from",
        "nodes.yaml",
        "--from",
        "dra.json",
        "--config",
        "c.yaml",
    )
    no_ticket = NO_TICKET if claims else ""
    code, out, err = tessera(*args, "-o", "patch")
    assert (code, "resourceClaims" in out) == (0, claims)
    assert (
        err.removeprefix(
            "Warning: GPU request 2g.20gb is a claim: 2g.20gb, else 1g.10gb, the first that is free\n"
        )
        == (told if claims else UNAVAILABLE) + no_ticket + "decided with c.yaml\n"
    )
    assert "k8s.io~1ticket" not in out
    _, out, err = tessera(*args, "-o", "explain")
    assert ("tessera controller does not renew its Lease; it makes the templates" in out) is not claims
    assert err == told + no_ticket
    _, _, err = tessera(*args, "-o", "summary")
    assert err == told + "decided with c.yaml\n"
    _, _, err = tessera(*args[:-2], "-o", "patch")
    assert err == NOT_IN_FILES, "where no request becomes a claim it does not matter"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "tessera: bad.yaml: line 2, column 1: did not find expected node content\n"),
        ("- 1", "tessera: bad.yaml: expected a Kubernetes object, got a list\n"),
        ("just text", "tessera: bad.yaml: expected a Kubernetes object, got a string\n"),
        ("metadata: {name: x}", "tessera: bad.yaml: kind: missing; expected a Kubernetes object\n"),
        ("kind: Pod\nspec: 5", "tessera: bad.yaml: Pod (no name): spec: expected object | null, got int\n"),
        ("kind: Pod\nmetadata: 5", "tessera: bad.yaml: Pod: metadata: expected an object\n"),
        (
            "kind: Job\nmetadata: {name: j}",
            "tessera: bad.yaml: Job j: spec.template: missing; expected a pod template\n",
        ),
        (
            "kind: PodList\nitems: [5]",
            "tessera: bad.yaml: PodList.items[0]: expected an object, got a number\n",
        ),
        (
            "kind: Pod\nmetadata: {name: x}\nspec: {containers: [{resources: {limits: {nvidia.com/gpu: one}}}]}",
            'tessera: bad.yaml: Pod x: spec.containers[0].resources.limits[nvidia.com/gpu]: "one" is not a Kubernetes quantity such as 2, 500m or 8Gi\n',
        ),
    ],
)
def test_bad_pods(tessera, text, complaint):
    """Bad input: one sentence that says where and what, exit 2, nothing on standard output."""
    Path("bad.yaml").write_text(text)
    code, out, err = tessera(
        "admit", "-f", PODS / "2g.yaml", "-f", "bad.yaml", "--from", NODES / "small.yaml"
    )
    assert (code, out, err) == (2, "", complaint)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["-f", "none.yaml", "--from", NODES / "small.yaml"], "tessera: none.yaml: no such file or directory\n"),
        (["-f", PODS / "2g.yaml", "--from", "."], "tessera: .: no files that end in .json, .yaml, .yml\n"),
        (["-f", PODS / "2g.yaml", "--from", PODS / "2g.yaml"], f"tessera: {PODS / '2g.yaml'}: no nodes\n"),
        (["-f", "-", "--from", "-"], "tessera: standard input (-) can be read only once\n"),
        (["--from", NODES / "small.yaml"], "tessera admit: give -f FILE (only -o summary can read the cluster's pods) (see tessera admit --help)\n"),
        (["-f", PODS / "2g.yaml", "--from", NODES / "small.yaml", "--context", "c"], "tessera admit: --from reads files: it does not go with --kubeconfig, --context or --as (see tessera admit --help)\n"),
        (["-f", "x", "--from", "y", "-o", "xml"], "tessera admit: Invalid value for '-o' / '--output': 'xml' is not one of 'patch', 'explain', 'summary', 'json', 'yaml', jsonpath=… (see tessera admit --help)\n"),
    ],
)  # fmt: skip
def test_bad_options(tessera, args, complaint):
    """Missing files and wrong options are said in one line."""
    code, out, err = tessera("admit", *args)
    assert (code, out, err) == (2, "", complaint)


def test_bad_config(tessera):
    """Every complaint about the configuration, each on a line with the file's name."""
    Path("c.yaml").write_text("fallback: {unmatched: maybe}\nserver: {onError: no}\n")
    code, out, err = tessera(
        "admit", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml", "--config", "c.yaml"
    )
    assert (code, out) == (2, "")
    assert err == (
        'tessera: c.yaml: fallback.unmatched: "maybe" is not one of reject, admit\n'
        "c.yaml: server.onError: false is not one of allow, deny\n"
    )


def test_nodes_with_bad_quantities(tessera):
    """A node that is no node is named."""
    Path("n.yaml").write_text("kind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: lots}}\n")
    code, _, err = tessera("admit", "-f", PODS / "2g.yaml", "--from", "n.yaml")
    assert (code, err) == (
        2,
        'tessera: n.yaml: node n1, status.allocatable[cpu]: "lots" is not a Kubernetes quantity such as 2, 500m or 8Gi\n',
    )


QUOTA = """\
kind: ResourceQuota
metadata: {name: gpus, namespace: team}
spec: {hard: {requests.nvidia.com/mig-1g.10gb: "2"}}
status: {hard: {requests.nvidia.com/mig-1g.10gb: "2"}, used: {requests.nvidia.com/mig-1g.10gb: "2"}}
"""


def test_observe_mode(tessera):
    """The object as it came, exit 0, and warnings of what would be; the reasoning says whose mode it is."""
    Path("c.yaml").write_text("mode: observe")
    args = ("admit", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml", "--config", "c.yaml")
    code, out, err = tessera(*args)
    assert (code, yaml.load(out)) == (0, yaml.load((PODS / "2g.yaml").read_text()))
    assert err.startswith("Warning: observe mode: would be changed to 1g.10gb: no node")
    Path("none.yaml").write_text("kind: Node\nmetadata: {name: cpu-1}\n")
    code, out, err = tessera(*args[:3], "--from", "none.yaml", "--config", "c.yaml", "-o", "patch")
    assert (code, out) == (0, "[]\n")
    assert err.startswith("Warning: observe mode: would be rejected: asked for")
    Path("space.yaml").write_text("kind: Namespace\nmetadata: {name: ml, labels: {gpu-webhook: observe}}")
    code, out, _ = tessera(*args[:5], "--from", "space.yaml", "-n", "ml", "-o", "explain")
    assert code == 0
    assert (
        "  mode        observe (namespace ml, label gpu-webhook=observe): what follows would be, and is not done"
        in out
    )
    assert "+    gpu-webhook.k8s.io/fallback: 2g.20gb->1g.10gb" in out


def test_quotas_among_the_nodes_and_among_the_pods(tessera):
    """Both count; the rejection names the quota."""
    Path("quota.yaml").write_text(QUOTA)
    args = ("admit", "-n", "team", "-f", PODS / "2g.yaml", "--from", NODES / "small.yaml")
    for more in (("--from", "quota.yaml"), ("-f", "quota.yaml")):
        code, _, err = tessera(*args, *more)
        assert code == 3
        assert '1g.10gb (over the quota "gpus": 2 used and 1 needed of 2)' in err
    assert tessera(*args, "--from", "quota.yaml", "-n", "other")[0] == 0


def test_folders(tessera):
    """A folder is every file in it that can hold objects, in the order of their names."""
    Path("all/deep").mkdir(parents=True)
    Path("all/deep/two.json").write_text('{"kind": "Service", "metadata": {"name": "two"}}')
    Path("all/notes.txt").write_text("not YAML: [")
    Path("all/one.yml").write_text((PODS / "2g.yaml").read_text())
    Path("nodes").mkdir()
    Path("nodes/small.yaml").write_text((NODES / "small.yaml").read_text())
    code, out, _ = tessera("admit", "-f", "all", "--from", "nodes", "-o", "json")
    assert (code, [one["kind"] for one in json.loads(out)["items"]]) == (0, ["Service", "Pod"])


def there(name, profile, namespace="team", phase="Running", **annotations):
    """A pod as a cluster has it."""
    resources = {"limits": {f"nvidia.com/mig-{profile}": "1"}} if profile else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": name, "annotations": annotations},
        "spec": {"nodeName": "gone", "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": phase},
    }


SUMMARY = """\
6 pods, 5 of them ask for GPUs: 3 would be changed, 1 would be rejected

NAMESPACE  ASK FOR GPUS  CHANGED  REJECTED
ml         2             1        1
team       3             2        0

FROM     TO                      PODS  NAMESPACES
2g.20gb  1g.10gb                 3     ml, team
2g.20gb  rejected (not_offered)  1     ml
"""


@pytest.mark.parametrize(
    "pod",
    ["{metadata: true}", "{metadata: {uid: u}, spec: [[]]}", "{status: 5, spec: {containers: 5}}",
     "{metadata: {name: p, uid: u, annotations: x}, spec: {containers: []}}"],
)  # fmt: skip
def test_summary_of_what_is_no_pod(tessera, pod):
    """One sentence, exit code 2."""
    Path("pod.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **yaml.load(pod)}))
    code, out, err = tessera("admit", "-f", "pod.json", "--from", NODES / "small.yaml", "-o", "summary")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tessera: Pod")


def test_summary(tessera):
    """How many of the pods that are there would change, by namespace and by what becomes of them: as if created now."""
    record = {"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"}
    pods = [
        there("as-asked", "1g.10gb"),
        there("changes", "2g.20gb"),
        there("changed", "1g.10gb", **record),  # fills its own quota
        there("ended", "2g.20gb", phase="Succeeded"),
        there("plain", ""),
        there("floor", "2g.20gb", "ml", **{"gpu-webhook.k8s.io/min-memory": "20Gi"}),
        there("pends", "2g.20gb", "ml", phase="Pending"),
    ]
    Path("pods.json").write_text(json.dumps({"kind": "List", "items": pods}))
    Path("quota.yaml").write_text(
        QUOTA.replace(
            'used: {requests.nvidia.com/mig-1g.10gb: "2"}', 'used: {requests.nvidia.com/mig-1g.10gb: "1"}'
        )
    )
    Path("c.yaml").write_text("mode: observe")
    args = (
        "admit",
        "-f",
        "pods.json",
        "--from",
        NODES / "small.yaml",
        "--from",
        "quota.yaml",
        "-o",
        "summary",
    )
    for more, used in (
        ((), NOT_IN_FILES),
        (("--config", "c.yaml"), "decided with c.yaml, whose mode is observe\n"),
    ):
        code, out, err = tessera(*args, *more)
        assert (code, err) == (0, used)
        told, _, rejected = out.rpartition("\n\n")
        assert told + "\n" == SUMMARY
        assert rejected.startswith("Pod ml/floor: asked for nvidia.com/mig-2g.20gb: 1, and no node")


def test_the_cluster_is_asked(served, command, tmp_path):
    """Without --from: what its nodes offer, whatever their labels count, and its namespaces say; nothing is created."""
    served.add(
        {
            "kind": "Node",
            "metadata": {"name": "n", "labels": {"nvidia.com/mig-2g.20gb.count": "8"}},
            "status": {"allocatable": {"nvidia.com/mig-1g.10gb": "4"}},
        }
    )
    args = ("admit", "--kubeconfig", served.kubeconfig)
    code, out, err = command(*args, "-f", str(PODS / "2g.yaml"), "-o", "patch")
    assert (code, json.loads(out)[0]["op"]) == (0, "remove")
    assert err.startswith("Warning: GPU fallback 2g.20gb->1g.10gb")
    served.add(there("one", "2g.20gb"), there("two", "1g.10gb", phase="Failed"), there("three", ""))
    code, out, err = command(*args, "-o", "summary")
    assert (code, err) == (0, DEFAULTS.format("there"))
    assert out.startswith("2 pods, 1 of them asks for GPUs: 1 would be changed, 0 would be rejected\n")
    code, out, err = command(*args, "-f", str(PODS / "2g.yaml"), "-o", "summary")
    assert out.startswith("1 pod, 1 of them asks for GPUs: 1 would be changed, 0 would be rejected\n")
    assert {request.method for request in served.server.requests} == {"GET"}


def test_the_lease_of_the_cluster(served, command, tmp_path):
    """Of a cluster the controller's Lease is looked at, as the webhook does: no request becomes a claim without it."""
    served.add(
        {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}},
        *TWO_AND_ONE,
        DEVICES,
    )
    config = tmp_path / "c.yaml"
    config.write_text("fallback: {dra: first-available}\n")
    args = (
        "admit",
        "--kubeconfig",
        served.kubeconfig,
        "-f",
        str(PODS / "2g.yaml"),
        "--config",
        str(config),
        "-o",
        "patch",
    )
    assert command(*args) == (0, "[]\n", f"{UNAVAILABLE}decided with {config}\n")
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": renewed}
    served.add(
        {"kind": "Lease", "metadata": {"name": "tessera-controller", "namespace": "tools"}, "spec": spec}
    )
    assert command(*args)[:2] == (0, "[]\n"), "not where it is looked for"
    code, out, err = command(*args, "--tessera-namespace", "tools")
    assert (code, "resourceClaims" in out, "taken to be running" in err) == (0, True, False)


HALF = {"config.yaml": "fallback: {minMemoryFraction: 0.5}\n"}
LIVE = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/mig-1g.10gb": "4"}}}


def config_map(data, name="gpu-webhook", namespace="gpu-webhook"):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}  # fmt: skip


def test_the_installed_configuration_decides(served, command):
    """With a minimum installed, admit rejects as the webhook does, and says which configuration it used; --config wins."""
    served.add(LIVE)
    args = ("admit", "--kubeconfig", served.kubeconfig, "-f", str(PODS / "3g.yaml"))
    assert command(*args)[0] == 0
    served.add(config_map(HALF))
    code, out, err = command(*args)
    used = "decided with the configuration of ConfigMap gpu-webhook/gpu-webhook"
    assert (code, out, err.splitlines()[-1]) == (3, "", used)
    assert "fallback.minMemoryFraction" in err
    code, out, err = command(*args, "-o", "explain")
    assert (code, err, out.splitlines()[-1]) == (3, "", used)
    code, out, err = command(*args, "-o", "summary")
    assert (out.splitlines()[0][-19:], err) == ("1 would be rejected", f"{used}\n")
    (command.folder / "own.yaml").write_text("mode: observe\n")
    code, _, err = command(*args, "--config", "own.yaml")
    assert (code, err.splitlines()[-1]) == (0, "decided with own.yaml, whose mode is observe")


def test_a_configmap_among_the_files(tessera):
    """Of a cluster in files, its ConfigMap decides; another one does not."""
    args = ("admit", "-f", PODS / "3g.yaml", "--from", NODES / "small.yaml", "--from", "c.json")
    Path("c.json").write_text(json.dumps(config_map(HALF)))
    code, _, err = tessera(*args)
    assert (code, err.splitlines()[-1]) == (
        3,
        "decided with the configuration of ConfigMap gpu-webhook/gpu-webhook",
    )
    Path("c.json").write_text(json.dumps(config_map(HALF, "mine")))
    code, _, err = tessera(*args)
    assert (code, err.splitlines()[-1] + "\n") == (0, NOT_IN_FILES)
    assert tessera(*args, "--webhook-name", "mine")[0] == 3


def taken(name, profile, where="n", **metadata):
    """A pod that holds a slice, or waits for one."""
    spec = {"containers": [{"name": "main", "resources": {"limits": {f"nvidia.com/mig-{profile}": "1"}}}]}
    owned = {"name": name, "namespace": "default", "uid": name, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": owned, "spec": {**spec, **({"nodeName": where} if where else {})}}  # fmt: skip


BOTH = {
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {
        "allocatable": {"nvidia.com/mig-2g.20gb": "1", "nvidia.com/mig-1g.10gb": "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
FREE = ("--config", "full.yaml", "--from", "cluster.json")


def write_cluster(*pods):
    Path("full.yaml").write_text("fallback: {when: full}\n")
    Path("cluster.json").write_text(json.dumps({"kind": "List", "items": [BOTH, *pods]}))


def test_by_what_is_free(tessera):
    """With `fallback.when: full`, admit decides by the pods among the files, and shows what is free beside what is there."""
    write_cluster(taken("other", "2g.20gb"))
    code, out, err = tessera("admit", "-f", PODS / "2g.yaml", *FREE, "-o", "explain")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
Pod default/infer
  asks for    nvidia.com/mig-2g.20gb: 1  (container main)
  rules       what is free now decides (fallback.when: full)
  nodes       1 of 1 nodes usable, 1 with GPUs
              ✓ n  1g.10gb ×2, 2g.20gb ×1  free now: 1g.10gb ×2, 2g.20gb ×0
  candidates  2g.20gb  as asked     offered, up to 1 a node; none free now
              1g.10gb  smaller      offered, up to 2 a node; up to 2 free on a node now  ← chosen
              gpu      a whole GPU  not offered
  decision    admitted with a change: 2g.20gb is taken, 1g.10gb is the first that is free
  warning     GPU fallback 2g.20gb->1g.10gb: 2g.20gb is taken on every node that this pod can use; 1g.10gb is free
  change      @@ -2,6 +2,10 @@
               kind: Pod
               metadata:
                 name: infer
              +  annotations:
              +    gpu-webhook.k8s.io/fallback: 2g.20gb->1g.10gb
              +    gpu-webhook.k8s.io/asked: '{"main":{"nvidia.com/mig-2g.20gb":"1"}}'
              +    gpu-webhook.k8s.io/decided-when: '{"main":{"nvidia.com/mig-1g.10gb":"1"}}'
               spec:
                 containers:
                 - name: main
              @@ -11,4 +15,4 @@
                   - infinity
                   resources:
                     limits:
              -        nvidia.com/mig-2g.20gb: 1
              +        nvidia.com/mig-1g.10gb: '1'

decided with full.yaml
"""
    )


def test_admit_keeps_no_room(tessera):
    """Each pod is decided about as if it alone were created: admit changes nothing, not even what it knows."""
    write_cluster()
    code, out, _ = tessera("admit", "-f", PODS / "2g.yaml", "-f", PODS / "2g.yaml", *FREE)
    limits = [yaml.load(one)["spec"]["containers"][0]["resources"]["limits"] for one in out.split("---\n")]
    assert (code, limits) == (0, [{"nvidia.com/mig-2g.20gb": 1}] * 2)


@pytest.mark.parametrize("where", ["n", ""])
def test_what_a_pod_has_itself_does_not_count(tessera, where):
    """A pod that is in the cluster, placed or waiting, is decided about without its own room; another one is not, and neither does it show in `-o summary`."""
    write_cluster(taken("infer", "2g.20gb", where))
    for name, gets in (("infer", "nvidia.com/mig-2g.20gb"), ("another", "nvidia.com/mig-1g.10gb")):
        Path("pod.yaml").write_text((PODS / "2g.yaml").read_text().replace("name: infer", f"name: {name}"))
        code, out, _ = tessera("admit", "-f", "pod.yaml", *FREE)
        assert (code, list(yaml.load(out)["spec"]["containers"][0]["resources"]["limits"])) == (0, [gets])
    _, out, _ = tessera("admit", "-f", PODS / "2g.yaml", *FREE, "-o", "explain")
    assert "2g.20gb ×1  free now: 1g.10gb ×2, 2g.20gb ×1" in out
    assert "admitted as it is: what it asks for is free" in out
    Path("pods.json").write_text(json.dumps({"kind": "List", "items": [taken("infer", "2g.20gb", where)]}))
    _, out, _ = tessera("admit", "-f", "pods.json", *FREE, "-o", "summary")
    assert out.startswith("1 pod, 1 of them asks for GPUs: 0 would be changed, 0 would be rejected\n")


def test_a_template_gets_no_mark(tessera):
    """A workload is shown as its next pod would be, and without a mark: its pods are decided about one by one."""
    write_cluster(taken("other", "2g.20gb"))
    pod = yaml.load((PODS / "2g.yaml").read_text())
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"metadata": {}, "spec": pod["spec"]}}}  # fmt: skip
    Path("web.json").write_text(json.dumps(workload))
    code, out, _ = tessera("admit", "-f", "web.json", *FREE)
    annotations = yaml.load(out)["spec"]["template"]["metadata"]["annotations"]
    assert (code, annotations["gpu-webhook.k8s.io/fallback"]) == (0, "2g.20gb->1g.10gb")
    assert "gpu-webhook.k8s.io/decided-when" not in annotations


def test_what_is_free_in_the_cluster(served, command):
    """Against a cluster, its pods show what is free; nothing is created."""
    served.add(BOTH, taken("other", "2g.20gb"))
    (command.folder / "full.yaml").write_text("fallback: {when: full}\n")
    args = ("admit", "--kubeconfig", served.kubeconfig, "-f", str(PODS / "2g.yaml"), "-o", "json")
    assert '"nvidia.com/mig-2g.20gb"' in command(*args)[1]
    code, out, err = command(*args, "--config", "full.yaml")
    assert (code, list(json.loads(out)["spec"]["containers"][0]["resources"]["limits"])) == (0, ["nvidia.com/mig-1g.10gb"])  # fmt: skip
    assert "2g.20gb is taken on every node that this pod can use; 1g.10gb is free" in err
    assert {request.method for request in served.server.requests} == {"GET"}
