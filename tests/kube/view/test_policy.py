"""Which configuration is decided by: what was given, what is installed, or default values; and that it is said."""

import json

import pytest

from tessera.core.admission.policy import Mode, Policy
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import CONFIG_MAPS, DEPLOYMENTS
from tessera.simulation.control_plane.store import StatusError
from tests.diagnosis.in_process import client_of

HERE = "gpu-webhook"
OBSERVE = {"config.yaml": "mode: observe\n"}
WRONG = {"config.yaml": "mode: never\nfallback: {upgrads: true}\n"}


class Server(ApiServer):
    def __init__(self, config_maps, mounts="", forbidden=""):
        super().__init__()
        self.asked, self._forbidden = [], forbidden
        for name, data in config_maps.items():
            self.store.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, HERE)
        if mounts:
            volumes = [{"name": "config", "configMap": {"name": mounts}}]
            spec = {"template": {"spec": {"volumes": volumes, "containers": []}}}
            self.store.create(DEPLOYMENTS, {"metadata": {"name": HERE}, "spec": spec}, HERE)

    def target(self, path):
        self.asked.append(path)
        found = super().target(path)
        if found.kind.plural in self._forbidden:
            raise StatusError(403, "Forbidden", f"{found.kind.plural} is forbidden")
        return found


@pytest.mark.parametrize(
    ("server", "mode", "said"),
    [
        (({HERE: OBSERVE}, HERE), Mode.OBSERVE, "the configuration of ConfigMap gpu-webhook/gpu-webhook, whose mode is observe"),
        (({HERE: {"config.yaml": ""}},), Mode.ENFORCE, "the configuration of ConfigMap gpu-webhook/gpu-webhook"),
        (({HERE: {}, "mine": OBSERVE}, "mine"), Mode.OBSERVE, "the configuration of ConfigMap gpu-webhook/mine, whose mode is observe"),
        (({HERE: OBSERVE}, HERE, "deployments"), Mode.OBSERVE, "the configuration of ConfigMap gpu-webhook/gpu-webhook, whose mode is observe"),
        (({"mine": OBSERVE},), Mode.ENFORCE, "default values: ConfigMap gpu-webhook/gpu-webhook is not there"),
        (({HERE: OBSERVE}, HERE, "configmaps"), Mode.ENFORCE, "default values: ConfigMap gpu-webhook/gpu-webhook may not be read"),
        (({HERE: {"other": "x"}},), Mode.ENFORCE, "default values: ConfigMap gpu-webhook/gpu-webhook has no key config.yaml"),
        (({HERE: WRONG},), Mode.ENFORCE, 'default values: ConfigMap gpu-webhook/gpu-webhook has mistakes: mode: "never" is not one of enforce, observe; fallback.upgrads: unknown field; did you mean "upgrades"?'),
    ],
    ids=["installed", "empty", "of the Deployment", "no Deployment to read", "none", "forbidden", "no key", "mistakes"],
)  # fmt: skip
async def test_of_a_cluster(server, mode, said):
    """The ConfigMap that the webhook's Deployment mounts, else the one of its name; else default values, and why."""
    used = await PolicySource().read(client_of(Server(*server)))
    assert (used.policy.mode, str(used)) == (mode, f"decided with {said}")


async def test_what_was_given_wins():
    """Then nothing is asked, and no file is looked through."""
    server, given = Server({HERE: OBSERVE}), UsedPolicy(Policy(), "own.yaml")
    source = PolicySource(given=given)
    assert (await source.read(client_of(server)), source.among([b"x"]), server.asked) == (given, given, [])
    assert str(given) == "decided with own.yaml"


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"name": HERE, "namespace": HERE}, True),
        ({"name": HERE}, True),
        ({"name": HERE, "namespace": "other"}, False),
        ({"name": "other", "namespace": HERE}, False),
    ],
)
def test_among_files(metadata, found):
    """By its name and namespace, where the file has one."""
    raw = json.dumps({"kind": "ConfigMap", "metadata": metadata, "data": OBSERVE}).encode()
    used = PolicySource().among([raw])
    assert (used.policy.mode is Mode.OBSERVE) is found
    assert used.missing == ("" if found else "ConfigMap gpu-webhook/gpu-webhook is not among the files")
