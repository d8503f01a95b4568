"""The few fields of Kubernetes objects that checks look at, as they are on the wire.

Here belongs how an object is read, and what can be said of it alone (a pod is ready, a Deployment has this argument). What
does not: any judgement, which is the checks'. Pods as the scheduler counts them are read elsewhere (`protocol.kubernetes`).
"""

from tessera.doctor.wire.dra import Claim, ClaimTemplate, DeviceClass, ResourceSlice, SchedulerPod
from tessera.doctor.wire.metadata import LabelSelector, Named, Texts
from tessera.doctor.wire.pods import PodState
from tessera.doctor.wire.webhook import (
    ConfigMap,
    Secret,
    Service,
    Version,
    Webhook,
    WebhookConfiguration,
)
from tessera.doctor.wire.workloads import Event, ObjectReference, Page, Workload

__all__ = [
    "Claim",
    "ClaimTemplate",
    "ConfigMap",
    "DeviceClass",
    "Event",
    "LabelSelector",
    "Named",
    "ObjectReference",
    "Page",
    "PodState",
    "ResourceSlice",
    "SchedulerPod",
    "Secret",
    "Service",
    "Texts",
    "Version",
    "Webhook",
    "WebhookConfiguration",
    "Workload",
]
