"""Events on a pod's owner: its pods get something else, or are rejected. `kubectl describe` shows them there.

A pod that is created by hand has no owner, and no uid to be found by yet: its warning must do.
"""

from typing import Final

from tessera.kube.events.correlator import About, Event
from tessera.kube.events.recorder import Recorder
from tessera.protocol.admission.review import AdmissionRequest
from tessera.webhook.endpoint import CachedResponse

COMPONENT: Final = "gpu-webhook"


def report_to_owner(recorder: Recorder, request: AdmissionRequest, response: CachedResponse) -> None:
    """Record a fallback or a rejection of a pod that has an owner; nothing of a dry run, of which nothing may remain."""
    if request.dry_run or recorder.is_full():
        return
    owner = request.owner()
    if owner is None or not owner.uid:
        return
    about = About(owner.api_version, owner.kind, owner.name, request.namespace, owner.uid)
    would = response.observed  # reported, and not done
    reason = response.record.fields["reason"]
    if response.rejected is not None:
        word, text = ("GPUWouldReject", "would be rejected") if would else ("GPURejected", "is rejected")
        event = Event(about, word, f"a pod {text}: {reason}", "Warning")
    else:
        gets = ", ".join(f"{new} in place of {old}" for old, new in response.replaced)
        word, text = ("GPUWouldFallBack", "would get") if would else ("GPUFallback", "gets")
        event = Event(about, word, f"a pod {text} {gets}: {reason}")
    recorder.record(event)
