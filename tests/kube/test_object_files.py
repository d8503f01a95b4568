"""Objects in files: every object once, whatever the file's shape, and complaints with the file's name in front."""

import json

import pytest

from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.object_files import called, objects_in, objects_in_documents, objects_in_text
from tessera.kube.view.files import DescribedCluster, put_spaces
from tessera.protocol import yaml

NODE = {"kind": "Node", "metadata": {"name": "a"}}
POD = {"kind": "Pod", "metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ([NODE], [NODE]),
        ([NODE, POD], [NODE, POD]),
        ([{"kind": "List", "items": [NODE, POD]}], [NODE, POD]),
        ([{"kind": "NodeList", "items": [{"metadata": {"name": "a"}}]}], [NODE]),
        ([{"kind": "List", "items": []}], []),
        ([{"kind": "List"}], []),
        ([{"metadata": {"name": "a"}}], [{"metadata": {"name": "a"}}]),
    ],
)
def test_json_and_yaml_say_the_same(documents, found):
    """The quick reading of JSON finds what the reading of YAML finds."""
    expected = [(one.get("kind", ""), one["metadata"]) for one in found]
    texts = [
        "---\n".join(map(yaml.dump, documents)),
        *(map(json.dumps, documents[:1] if len(documents) == 1 else [])),
    ]
    for text in texts:
        seen = list(objects_in_text(text.encode(), "f"))
        assert [(one.kind, json.loads(one.raw)["metadata"]) for one in seen] == expected
        assert all(one.where == "f" for one in seen)


def test_folders(tmp_path):
    """Of a folder every file that can hold objects is read, in order; one without any is refused."""
    (tmp_path / "pods").mkdir()
    (tmp_path / "nodes.yaml").write_text(yaml.dump(NODE))
    (tmp_path / "pods" / "p.json").write_text(json.dumps(POD))
    (tmp_path / "notes.txt").write_text("kind: Node")
    assert [one.kind for one in objects_in([str(tmp_path)])] == ["Node", "Pod"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"empty: no files that end in \.json, \.yaml, \.yml"):
        list(objects_in([str(tmp_path / "empty")]))


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "the name of a file is empty"), ("x" * 300, f"{'x' * 300}: file name too long")],
)
def test_names_that_no_file_has(name, message):
    """An empty name is not the current folder, and a text in place of a name is one sentence."""
    with pytest.raises(InvalidInput) as refused:
        list(objects_in([name]))
    assert str(refused.value) == message


def test_names():
    """Standard input has a name of its own in messages."""
    assert called("a", "-", "b") == "a, standard input, b"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"kind: Service",
            "f: kind Service is no Node, Namespace, ResourceQuota, DeviceClass, ResourceSlice, Lease, ConfigMap or Pod",
        ),
        (
            b"a: 1",
            "f: kind (none) is no Node, Namespace, ResourceQuota, DeviceClass, ResourceSlice, Lease, ConfigMap or Pod",
        ),
        (b"[1]", "f: expected a Kubernetes object, got a list"),
        (b"kind: Node\nmetadata: {name: n}\nstatus: 7", "f: Node n: status: expected object, got int"),
        (b"kind: Node\nmetadata: 7", "f: Node (no name): metadata: expected object, got int"),
        (b'{"kind": "NodeList", "items": 7}', "f: NodeList.items: expected a list, got a number"),
        (b'{"kind": "NodeList", "items": [7]}', "f: NodeList.items[0]: expected an object, got a number"),
        (
            b'{"kind": "NodeList", "items": [{"metadata": 7}]}',
            "f: Node (no name): metadata: expected object, got int",
        ),
        (
            b"kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: many}}",
            'f: node n, status.allocatable[cpu]: "many" is not a Kubernetes quantity such as 2, 500m or 8Gi',
        ),
        (b'{"kind": "\xff"}', "f: not UTF-8 text (byte 10)"),
        (b'{"kind": "NodeList", "items": [{"kind": "\xff"}]}', "f: not UTF-8 text (byte 41)"),
        (b'{"kind": "Node", "metadata": {"name": "\xff"}}', "f: Node: not UTF-8 text (byte 0)"),
    ],
)
def test_files_without_nodes_are_refused(content, message):
    """What is no node and no namespace is refused, with the place."""
    with pytest.raises(InvalidInput) as caught:
        DescribedCluster(objects_in_text(content, "f"))
    assert str(caught.value) == message


def test_a_quota_that_names_no_namespace_is_of_the_default_one():
    """As kubectl creates it: it holds the pods of `default`, as do pods that name none."""
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    offers = Offers()
    DescribedCluster(objects_in_text(json.dumps(quota).encode(), "f")).put_into(offers)
    assert [*offers.quotas] == ["default"]


def test_of_a_namespace_that_is_written_twice_the_last_counts():
    """As when kubectl applies the file."""
    twice = [{"kind": "Namespace", "metadata": {"name": "a", "labels": {"n": n}}} for n in ("1", "2")]
    offers = Offers()
    put_spaces(offers, objects_in_documents(twice, "f"), "")
    assert offers.namespaces["a"].labels == {"n": "2"}
