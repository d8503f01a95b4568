"""Reviews that are none."""

import contextlib
import copy
import json

import pytest

from tessera.core.admission.policy import Policy
from tessera.core.errors import InvalidInput
from tessera.webhook.endpoint import Admission
from tests.build import node, offers, review

POD = {
    "metadata": {"name": "x", "annotations": {"a": "b"}, "labels": {}},
    "status": {},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "x",
                "resources": {"requests": {"nvidia.com/mig-2g.20gb": "1"}, "limits": {}, "claims": []},
                "restartPolicy": "x",
            }
        ],
        "initContainers": [],
        "nodeSelector": {},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [],
        "overhead": {},
        "resources": {},
        "nodeName": "",
    },
}
WHOLE = json.loads(review(POD))


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def with_text(path, text):
    """A review with a text of JSON in one place."""
    if not path:
        return text
    document = copy.deepcopy(WHOLE)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = "@"
    return json.dumps(document).encode().replace(b'"@"', text)


def nested(levels):
    return b"[" * levels + b"]" * levels, b'{"a":' * levels + b"1" + b"}" * levels, b"[" * levels


@pytest.mark.parametrize("path", list(places(WHOLE)), ids=lambda path: ".".join(map(str, path)) or "body")
def test_fault_2_json_a_million_levels_deep(path):
    """JSON a million levels deep is no review, wherever it stands, also where something else is wrong as well."""
    for text in nested(1_000_000):
        body = with_text(path, text)
        for one in (body, body.replace(b'"uid"', b'"object": {"spec": 5}, "uid"')):
            with pytest.raises(InvalidInput):
                Admission(offers(), Policy()).answer(one)


@pytest.mark.parametrize("levels", range(860, 1000, 5))
def test_fault_2_json_as_deep_as_can_just_be_read(levels):
    """Near the depth that can just be read, a review is answered or refused; it does not fail on its way."""
    admission = Admission(offers(node("n", **{"1g.10gb": 7})), Policy())
    for path in places(WHOLE):
        for text in nested(levels):
            with contextlib.suppress(InvalidInput):
                admission.answer(with_text(path, text))
