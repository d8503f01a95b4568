"""Of which Jobs an eviction costs no retry."""

import json

import pytest

from tessera.diagnosis.patience.pending_pods import Job


def rule(action, *conditions):
    return {
        "action": action,
        "onPodConditions": [{"type": kind, "status": state} for kind, state in conditions],
    }


DISRUPTED = ("DisruptionTarget", "True")
IGNORE = rule("Ignore", DISRUPTED)
EXIT = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("rules", "free"),
    [
        (None, False),
        ([], False),
        ([EXIT], False),
        ([IGNORE], True),
        ([EXIT, IGNORE], True),
        ([rule("Ignore", ("Other", "True"), DISRUPTED)], True),
        ([rule("Count", DISRUPTED), IGNORE], False),
        ([rule("FailJob", DISRUPTED), IGNORE], False),
        ([rule("FailJob", ("Other", "True")), IGNORE], True),
        ([rule("FailJob", ("PodScheduled", "False")), IGNORE], False),
        ([rule("Ignore", ("PodScheduled", "False"))], True),
        ([rule("Ignore", ("DisruptionTarget", "False"))], False),
    ],
)
def test_only_a_job_that_ignores_evictions(rules, free):
    """The first rule that matches an evicted pod holds; without one that ignores it the eviction is a failure, and costs a retry."""
    spec = {} if rules is None else {"podFailurePolicy": {"rules": rules}}
    job = Job.read(json.dumps({"metadata": {"uid": "j"}, "spec": {"backoffLimit": 6, **spec}}).encode())
    assert job.is_free([("PodScheduled", "False")]) is free


@pytest.mark.parametrize(
    "parts",
    [
        {"spec": {"suspend": True}},
        {"metadata": {"deletionTimestamp": "2027-01-15T07:30:00Z"}},
        {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}},
    ],
)
def test_jobs_that_stand_aside(parts):
    """A Job that is suspended or being deleted makes no pods; one of Kueue's is Kueue's."""
    document = {"metadata": parts.get("metadata", {}), "spec": parts.get("spec", {})}
    document["spec"]["podFailurePolicy"] = {"rules": [IGNORE]}
    assert not Job.read(json.dumps(document).encode()).is_free([])
