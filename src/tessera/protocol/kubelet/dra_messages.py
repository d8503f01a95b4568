"""DRA messages on one side, plain values on the other; and the methods of each service.

A service that has two versions has the same messages in both: the versions are two names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import health_pb2 as health
from tessera.protocol.kubelet import registration_pb2 as registration
from tessera.protocol.kubelet.messages import Method

_REGISTRATION: Final = "pluginregistration.Registration"
GET_INFO: Final = Method(_REGISTRATION, "GetInfo", registration.InfoRequest, registration.PluginInfo)
NOTIFY: Final = Method(
    _REGISTRATION,
    "NotifyRegistrationStatus",
    registration.RegistrationStatus,
    registration.RegistrationStatusResponse,
)

# The kubelet takes the first of the list that it knows: the newest stands first
PLUGIN_SERVICES: Final = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
)
HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_SUPPORTED: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH_SERVICES)

_MOST_MESSAGE: Final = 1024  # characters of a health message; the kubelet cuts longer ones (KEP-4680)


# the calls that prepare and end claims, and the stream of every device's health, by the version of the service
PREPARE: Final = {
    one: Method(
        one, "NodePrepareResources", dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
    )
    for one in PLUGIN_SERVICES
}
UNPREPARE: Final = {
    one: Method(
        one, "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
    )
    for one in PLUGIN_SERVICES
}
WATCH_HEALTH: Final = {
    one: Method(
        one, "NodeWatchResources", health.NodeWatchResourcesRequest, health.NodeWatchResourcesResponse
    )
    for one in HEALTH_SERVICES
}


@dataclass(frozen=True, slots=True)
class ClaimName:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    request: str  # as in the allocation: `gpu`, or `gpu/smaller` where an alternative was taken
    pool: str
    device: str
    cdi_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    pool: str
    device: str
    problem: str  # empty: healthy


def plugin_info(driver: str, endpoint: str) -> registration.PluginInfo:
    """The answer to the kubelet when it finds the registration socket."""
    return registration.PluginInfo(
        type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=_SUPPORTED
    )


def claims_of(
    request: dra.NodePrepareResourcesRequest | dra.NodeUnprepareResourcesRequest,
) -> list[ClaimName]:
    return [ClaimName(claim.namespace, claim.name, claim.uid) for claim in request.claims]


def main_request(request: str) -> str:
    """The request that a container names: `gpu` for `gpu/smaller`; the kubelet compares it literally."""
    return request.partition("/")[0]


def prepare_response(
    prepared: Mapping[str, Sequence[PreparedDevice]], errors: Mapping[str, str]
) -> dra.NodePrepareResourcesResponse:
    """What became of each claim, by uid; one without devices has its key too."""
    response = dra.NodePrepareResourcesResponse()
    for uid, devices in prepared.items():
        response.claims[uid].devices.extend(
            dra.Device(
                request_names=[main_request(device.request)],
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=device.cdi_names,
            )
            for device in devices
        )
    for uid, error in errors.items():
        response.claims[uid].error = error
    return response


def unprepare_response(done: Iterable[str], errors: Mapping[str, str]) -> dra.NodeUnprepareResourcesResponse:
    response = dra.NodeUnprepareResourcesResponse()
    for uid in done:
        response.claims[uid].error = ""  # touched: the key is there
    for uid, error in errors.items():
        response.claims[uid].error = error
    return response


def health_response(
    conditions: Iterable[DeviceCondition], now: int, timeout: int
) -> health.NodeWatchResourcesResponse:
    """The whole list; the kubelet takes an entry for unknown when `timeout` seconds brought no other."""
    return health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=health.UNHEALTHY if one.problem else health.HEALTHY,
                last_updated_time=now,
                health_check_timeout_seconds=timeout,
                message=one.problem[:_MOST_MESSAGE],
            )
            for one in conditions
        ]
    )
