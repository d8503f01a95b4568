"""What the ClusterPolicy and mig-manager's ConfigMap say."""

import msgspec
import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.webhook import decode_config_map
from tessera.protocol.mig.operator import config_in, config_of, decode_policy
from tests.inventory.objects import MIG_PARTED, config_map, policy


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (policy(), ("gpu-operator", "default-mig-parted-config")),
        (policy("mine", "nvidia"), ("nvidia", "mine")),
        ({"metadata": {"name": "x"}, "spec": {"migManager": {"config": None}}}, ("gpu-operator", "default-mig-parted-config")),
        ({"metadata": {"name": "x"}}, ("gpu-operator", "default-mig-parted-config")),
    ],
)  # fmt: skip
def test_the_policy_names_the_config_map(document, names):
    """Its name and namespace, with the operator's defaults."""
    assert decode_policy(msgspec.json.encode(document)).config_map == names


OWNERS = [{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy"}]


@pytest.mark.parametrize(
    ("document", "owned", "error"),
    [
        (config_map(resourceVersion="7"), True, ""),
        (config_map(name="mine"), False, ""),
        (config_map(name="mine", ownerReferences=OWNERS), True, ""),
        (config_map(None, "mine"), False, "ConfigMap gpu-operator/mine has no key config.yaml"),
        (config_map("3g.40gb=2", "mine"), False, "ConfigMap gpu-operator/mine: expected mig-parted's format: mig-configs with counts of mig-devices"),
        (config_map("version: v2\nmig-configs: {a: []}", "mine"), False, "ConfigMap gpu-operator/mine: version: unknown; expected v1\nConfigMap gpu-operator/mine: mig-configs.a: expected a list of entries, at least one"),
    ],
)  # fmt: skip
def test_the_config_map(document, owned, error):
    """Whether the operator owns it, and its configurations, or why they cannot be read."""
    found = config_of(decode_config_map(msgspec.json.encode(document)))
    assert (found.owned, found.error) == (owned, error)
    assert found.resource_version == document["metadata"].get("resourceVersion", "")
    if error:
        assert found.document is None
    else:
        assert found.document is not None
        assert "all-1g.10gb" in found.document.configs
        assert found.text == MIG_PARTED


def test_a_file():
    """A mig-parted file stands for the ConfigMap."""
    found = config_in(MIG_PARTED, "layouts.yaml")
    assert (str(found), found.owned, found.error) == ("layouts.yaml", False, "")
    with pytest.raises(InvalidInput, match=r"^counts: expected mig-parted's format"):
        config_in("1g.10gb=7", "counts")
