"""Any object as a document: its name in messages, and the pod in it."""

import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.workloads import TEMPLATES, template_of, templates_of, title_of, written


@pytest.mark.parametrize(
    ("document", "more", "title"),
    [
        ({"kind": "Pod", "metadata": {"name": "train"}}, {}, "Pod train"),
        ({"kind": "Pod", "metadata": {"name": "train"}}, {"namespace": "ml"}, "Pod ml/train"),
        ({"kind": "Pod", "metadata": {"generateName": "train-"}}, {}, "Pod train-"),
        ({"metadata": {"name": "n1"}}, {"kind": "Node"}, "Node n1"),
        ({"kind": "ConfigMap", "metadata": 5}, {}, "ConfigMap (no name)"),
        ({"kind": "Pod"}, {}, "Pod (no name)"),
    ],
)
def test_titles(document, more, title):
    """Kind, namespace where there is one to tell, and name; whatever else may be odd about the object."""
    assert title_of(document, **more) == title


@pytest.mark.parametrize("kind", TEMPLATES)
def test_templates(kind):
    """The pod is found where its kind has it; where it is not, the place is named."""
    document: dict[str, object] = {"spec": {"containers": []}}
    pod = document
    for step in reversed(TEMPLATES[kind]):
        document = {step: document}
    document = {"metadata": {"name": "w"}, **document, "kind": kind}
    assert template_of(document)["spec"] is pod["spec"]
    if TEMPLATES[kind]:
        with pytest.raises(InvalidInput) as caught:
            template_of({"kind": kind, "metadata": {"name": "w"}, "spec": 5, "template": []})
        assert str(caught.value) == f"{kind} w: {'.'.join(TEMPLATES[kind])}: missing; expected a pod template"


def template(name="c"):
    return {"metadata": {}, "spec": {"containers": [{"name": name}]}}


@pytest.mark.parametrize(
    ("document", "places"),
    [
        ({"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": [{"template": template()}, {"template": template()}]}}, ["spec.tasks[0].template", "spec.tasks[1].template"]),
        ({"kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1", "spec": {"pytorchReplicaSpecs": {"Master": {"template": template()}, "Worker": {"replicas": 3, "template": template()}}}}, ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"]),
        ({"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2", "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": template()}}}]}}, ["spec.replicatedJobs[0].template.spec.template"]),
        ({"kind": "LeaderWorkerSet", "apiVersion": "leaderworkerset.x-k8s.io/v1", "spec": {"leaderWorkerTemplate": {"leaderTemplate": template(), "workerTemplate": template()}}}, ["spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"]),
        ({"kind": "RayJob", "apiVersion": "ray.io/v1", "spec": {"rayClusterSpec": {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [{"template": template()}]}}}, ["spec.rayClusterSpec.headGroupSpec.template", "spec.rayClusterSpec.workerGroupSpecs[0].template"]),
        ({"kind": "Service", "apiVersion": "serving.knative.dev/v1", "spec": {"template": template()}}, ["spec.template"]),
        ({"kind": "Job", "apiVersion": "batch/v1", "spec": {"template": template()}}, ["spec.template"]),
        ({"kind": "Pod", "apiVersion": "v1", **template()}, [""]),
        ({"kind": "Service", "apiVersion": "v1", "spec": {"ports": []}}, []),
        ({"kind": "ConfigMap", "data": {"spec": {"containers": []}}}, []),
        ({"kind": "X", "apiVersion": "x/v1", "spec": {"spec": {"containers": "many"}}}, []),
        ({"kind": "X", "apiVersion": "x/v1", "spec": 7}, []),
    ],
)  # fmt: skip
def test_templates_are_found_by_their_shape(document, places):
    """Whatever makes pods has templates in it, and they look alike; a kind's name is another's in another API group."""
    found = templates_of(document)
    assert [written(place) for place, _ in found] == places
    assert all(one["spec"]["containers"] for _, one in found)


def test_the_search_for_templates_ends():
    """A document that is nested without end has none in its depths."""
    deep = template()
    for _ in range(100):
        deep = {"a": [deep]}
    assert templates_of({"kind": "X", "apiVersion": "x/v1", "spec": deep}) == []
