"""What a pod, its namespace and the configuration say about what is free, and about waiting: the nearest holds."""

import pytest

from tessera.core.admission.policy import (
    OF_FULL,
    FallbackPolicy,
    Policy,
    When,
    patience_of,
    when_of,
)
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Pod
from tests.build import pod

WHEN, PATIENCE = "gpu-webhook.k8s.io/fallback-when", "gpu-webhook.k8s.io/patience"
ENABLED, FULL, OFF = FallbackPolicy(full_enabled=True), FallbackPolicy(when=When.FULL), FallbackPolicy()


def said(annotation: str, own: str | None, of_namespace: str | None) -> tuple[Pod, Namespace | None]:
    """A pod and its namespace that say this; None: nothing."""
    namespace = None if of_namespace is None else Namespace("default", annotations={annotation: of_namespace})
    return pod(annotations={} if own is None else {annotation: own}), namespace


@pytest.mark.parametrize(
    ("policy", "own", "of_namespace", "holds"),
    [
        (OFF, None, None, When.MISSING),
        (ENABLED, None, None, When.MISSING),
        (FULL, None, None, When.FULL),
        (ENABLED, "full", None, When.FULL),
        (ENABLED, None, "full", When.FULL),
        (ENABLED, "missing", "full", When.MISSING),
        (ENABLED, "full", "missing", When.FULL),
        (FULL, "missing", None, When.MISSING),
        (FULL, None, "missing", When.MISSING),
        (FULL, "full", "missing", When.FULL),
        (OFF, "full", "full", When.MISSING),
        (OFF, "nonsense", "nonsense", When.MISSING),
    ],
)
def test_when(policy, own, of_namespace, holds):
    """The pod's annotation over its namespace's over the configuration; annotations count only where pods are followed."""
    assert when_of(*said(WHEN, own, of_namespace), policy) is holds


@pytest.mark.parametrize(
    ("configured", "own", "of_namespace", "seconds"),
    [
        (None, None, None, None),
        (300.0, None, None, 300.0),
        (300.0, None, "10m", 600.0),
        (300.0, "1h", "10m", 3600.0),
        (300.0, "off", "10m", None),
        (300.0, "0s", None, None),
        (300.0, None, "off", None),
        (None, "2m", None, 120.0),
        (None, "2m", "off", 120.0),
        (None, "5s", None, 30.0),
        (5.0, None, None, 30.0),
    ],
)
def test_patience(configured, own, of_namespace, seconds):
    """The same order for patience; it is 30 s at least, and `off` and `0s` switch it off."""
    policy = FallbackPolicy(patience=configured)
    assert patience_of(*said(PATIENCE, own, of_namespace), policy) == seconds
    least = None if seconds is None else (5.0 if seconds == 30.0 else seconds)
    assert patience_of(*said(PATIENCE, own, of_namespace), policy, least=1.0) == least, "tests may set less"


def test_what_means_nothing():
    """A text without a meaning is refused, with its place and what would be right."""
    with pytest.raises(InvalidInput) as raised:
        when_of(*said(WHEN, "free", None), ENABLED)
    assert str(raised.value) == f'metadata.annotations[{WHEN}]: "free" is not one of missing, full'
    with pytest.raises(InvalidInput) as raised:
        patience_of(*said(PATIENCE, None, "long"), ENABLED)
    assert str(raised.value) == (
        f'namespace default, metadata.annotations[{PATIENCE}]: "long" is not a duration such as 30s, 2m or 1h'
    )


def test_what_decisions_read():
    """The annotations of `full` are part of what a cached answer depends on, only where pods are followed: elsewhere nothing is slower."""
    assert set(OF_FULL) <= set(Policy(ENABLED).annotations)
    assert set(OF_FULL).isdisjoint(Policy().annotations)
