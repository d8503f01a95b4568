"""Pods on a real node that come and go, and notice when another one has their device."""

import contextlib
import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e import dra
from e2e.cluster import ApiError, ClusterWithNode, Object, pods_path

NAMESPACE: Final = "chaos"
THREADS: Final = 4  # that make and delete pods
# Each container writes its name into its device's file and reads it back: two that live at once see each other.
SCRIPT: Final = """
    for device in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do
        while :; do
            echo $HOSTNAME >/locks/$device
            sleep 0.1
            read -r found </locks/$device
            test "$found" = "$HOSTNAME" || echo "$HOSTNAME $found" >/locks/twice-$device
        done &
    done
    trap exit TERM
    wait
"""


class Churn:
    """Makes pods, lets them run, and deletes them."""

    def __init__(
        self,
        cluster: ClusterWithNode,
        profiles: Sequence[str],
        locks: Path,
        over: threading.Event,
        *,
        by_force: bool,
    ) -> None:
        """`locks`: the folder that containers share, `over`: set at the end, `by_force`: half of the pods are deleted so."""
        self.pods = self.ran = 0
        self._cluster = cluster
        self._profiles = profiles
        self._locks = locks
        self._over = over
        self._by_force = by_force

    def run(self, number: int) -> None:
        """Make a pod, let it run, delete it; again until it is over."""
        chance, count, pods = random.Random(f"{number}"), 0, pods_path(NAMESPACE)
        while not self._over.is_set():
            name, count = f"p{number}-{count}", count + 1
            with contextlib.suppress(ApiError, OSError):
                self._cluster.api.create(pods, self.pod(name, chance.choice(self._profiles)))
                self.pods += 1
            until = time.monotonic() + chance.uniform(1.0, 20.0)
            has_run = False
            while time.monotonic() < until and not self._over.is_set():
                with contextlib.suppress(ApiError, OSError):
                    status = self._cluster.api.get(f"{pods}/{name}")["status"]
                    has_run = has_run or status.get("phase") == "Running"
                self._over.wait(0.3)
            self.ran += has_run
            options = {"gracePeriodSeconds": "0"} if self._by_force and chance.random() < 0.5 else {}
            with contextlib.suppress(ApiError, OSError):
                self._cluster.api.delete(f"{pods}/{name}", **options)

    def pod(self, name: str, profile: str) -> Object:
        """A pod that notices another one on its device."""
        grace = 0 if self._by_force else 1
        limits = {f"nvidia.com/mig-{profile}": 1}
        body: Object = json.loads(dra.pod(name, script=SCRIPT, limits=limits, grace=grace))
        body["spec"]["volumes"] = [{"name": "locks", "hostPath": {"path": str(self._locks)}}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "locks", "mountPath": "/locks"}]
        return body
