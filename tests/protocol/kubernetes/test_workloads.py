"""Any object as a document: its name in messages, and the pod in it."""

import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.workloads import TEMPLATES, template_of, title_of


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
