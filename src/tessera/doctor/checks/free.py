"""The check of fallback by what is free: the webhook may follow pods."""

from collections.abc import Iterator

from tessera.core.admission.policy import When
from tessera.core.text import first_of
from tessera.doctor.findings import MOST_ALIKE, Finding, not_applicable, problem, short, unseen
from tessera.doctor.observations import Observations


def free(seen: Observations) -> Iterator[Finding]:
    """Where `full` is switched on, the webhook knows what is free."""
    names, fallback = seen.names, seen.cluster.policy.fallback
    if not fallback.full_enabled:
        yield not_applicable("fallback.when is missing: what is free does not matter")
        return
    setting = "fallback.when: full" if fallback.when is When.FULL else "fallback.full.enabled: true"
    harm = f"{setting} is set, and pods are decided about as with `missing`"
    account = seen.deployment and (seen.deployment.spec.template.spec.service_account_name or "default")
    # the chart gives the right where its own values switch it on
    repair = f"{names.upgrade} --set webhook.followPods=true"
    asked = f"kubectl auth can-i watch pods -A --as=system:serviceaccount:{names.namespace}:{account}"
    blind = [one.pod for one in seen.served if one.follows_pods is False]
    if seen.may_follow_pods is False:
        yield problem(f"{harm}: the webhook's account {account} may not list and watch pods", repair, asked)
    elif blind:
        which = first_of(blind, MOST_ALIKE)
        yield problem(f"{harm}: {which} did not get the pods from the API server", names.logs(), asked)
    elif seen.may_follow_pods is None and not any(one.follows_pods for one in seen.served):
        why = seen.unseen.get("may_follow_pods") or "neither the API server nor a replica says so"
        yield unseen(f"could not see whether the webhook may list and watch pods: {short(why)}", asked)
