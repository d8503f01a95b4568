"""Pods that really run, of the one image that every node has."""

import json

from e2e.cluster import BUSYBOX, Object

FOREVER = "exec sleep 1000"


def busybox_pod(
    name: str,
    resources: Object,
    script: str = FOREVER,
    *,
    restart: str = "Never",
    grace: int = 0,
    **spec: object,
) -> str:
    """A pod's manifest: busybox runs the script with these resources."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources,
    }
    whole = {
        "terminationGracePeriodSeconds": grace,
        "restartPolicy": restart,
        **spec,
        "containers": [container],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
