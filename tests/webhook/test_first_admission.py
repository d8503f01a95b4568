"""How many modules a pod passes at its first admission: who follows it reads no more than these."""

import sys
from types import FrameType

from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tests.build import MIG, node, offers, pod_document, policy, review

RULES = """
injection:
  resourceMap: {V100: {nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 4}]}}}
"""
# Modules of values: frozen data, how it is written, and arithmetic on it. They decide nothing and know none of the others.
VALUES = (
    "tessera.core.kubernetes.",
    "tessera.core.mig.",
    "tessera.core.requests.",
    "tessera.core.gpu_names",
    "tessera.core.text",
    "tessera.core.admission.policy",
    "tessera.core.admission.outcome",
    "tessera.core.admission.fallback.found",
    "tessera.core.admission.edits",
)
MOST = 18


def test_the_first_admission_passes_few_modules(tmp_path):
    """A template's first pod, with fallback and injection: at most 18 modules that are more than values have a part in it."""
    entered: set[str] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("tessera."):
            entered.add(name)

    document = pod_document(
        {"limits": {MIG + "2g.20gb": "1"}}, annotations={"task.bkbcs.tencent.com/gpu-type": "V100"}
    )
    with (tmp_path / "log").open("wb") as file:
        admission = Admission(offers(node("small", **{"1g.10gb": 28})), policy(RULES))
        endpoint = Endpoint(admission, lambda: None, Metrics("1"), Log("json", "info", file.fileno()))
        body = review(document)
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            response = endpoint.handle(body)
        finally:
            sys.setprofile(before)
    assert b"JSONPatch" in response.body
    more = sorted(name for name in entered if not name.startswith(VALUES))
    assert {
        "tessera.webhook.endpoint",
        "tessera.core.admission.decision",
        "tessera.core.admission.injection",
    } <= set(more)
    assert len(more) <= MOST, more
