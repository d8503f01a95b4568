"""DRA messages and plain values."""

from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import health_pb2 as health
from tessera.protocol.kubelet.dra_messages import ClaimName, DeviceCondition, PreparedDevice


def test_paths_are_those_that_the_kubelet_calls() -> None:
    """Both versions of each service, by the names of the kubelet's own contracts."""
    assert [messages.PREPARE[service].path for service in messages.PLUGIN_SERVICES] == [
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
    ]
    assert [messages.UNPREPARE[service].path for service in messages.PLUGIN_SERVICES] == [
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    ]
    assert [messages.WATCH_HEALTH[service].path for service in messages.HEALTH_SERVICES] == [
        "/v1.DRAResourceHealth/NodeWatchResources",
        "/v1alpha1.DRAResourceHealth/NodeWatchResources",
    ]
    assert messages.GET_INFO.path == "/pluginregistration.Registration/GetInfo"
    assert messages.NOTIFY.path == "/pluginregistration.Registration/NotifyRegistrationStatus"


def test_plugin_info_names_the_newest_version_first() -> None:
    """The kubelet takes the first version of the list that it knows."""
    info = messages.plugin_info("gpu.tessera.dev", "/var/lib/kubelet/plugins/gpu.tessera.dev/a.sock")
    assert (info.type, info.name) == ("DRAPlugin", "gpu.tessera.dev")
    assert info.endpoint == "/var/lib/kubelet/plugins/gpu.tessera.dev/a.sock"
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


def test_claims_are_read() -> None:
    """Namespace, name and uid, in order."""
    request = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="ns", uid="u", name="n")])
    assert messages.claims_of(request) == [ClaimName("ns", "n", "u")]
    assert str(ClaimName("ns", "n", "u")) == "ns/n"


def test_every_claim_has_its_key() -> None:
    """A claim without devices is a success with a key; an error stands beside others' devices."""
    response = messages.prepare_response(
        {"a": [PreparedDevice("gpu/smaller", "node/tessera", "gpu-0", ("x/claim=a",))], "b": []},
        {"c": "no such device"},
    )
    assert set(response.claims) == {"a", "b", "c"}
    [device] = response.claims["a"].devices
    assert list(device.request_names) == ["gpu"], "the request without the alternative"
    assert (device.pool_name, device.device_name) == ("node/tessera", "gpu-0")
    assert list(device.cdi_device_ids) == ["x/claim=a"]
    assert not device.HasField("share_id"), "unset, not empty"
    assert (response.claims["b"].error, list(response.claims["b"].devices)) == ("", [])
    assert response.claims["c"].error == "no such device"


def test_unprepare_answers_for_every_claim() -> None:
    """Success is a key with an empty message, also on the wire."""
    sent = messages.unprepare_response(["a"], {"b": "busy"}).SerializeToString()
    response = dra.NodeUnprepareResourcesResponse.FromString(sent)
    assert {uid: one.error for uid, one in response.claims.items()} == {"a": "", "b": "busy"}


def test_health_is_the_whole_list() -> None:
    """Healthy and unhealthy, the reason cut at what the kubelet takes."""
    response = messages.health_response(
        [DeviceCondition("p", "gpu-0", ""), DeviceCondition("p", "gpu-1", "x" * 2000)], now=7, timeout=30
    )
    well, ill = response.devices
    assert (well.device.device_name, well.health, well.message) == ("gpu-0", health.HEALTHY, "")
    assert (ill.device.pool_name, ill.health, len(ill.message)) == ("p", health.UNHEALTHY, 1024)
    assert (ill.last_updated_time, ill.health_check_timeout_seconds) == (7, 30)
