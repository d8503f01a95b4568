"""Checks of a node's CDI specs: readable, in no conflict, and ours are what the plugin told the kubelet."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.doctor.evidence import CdiFile, Evidence
from tessera.doctor.findings import Finding, not_applicable, problem, short, unseen, warning
from tessera.protocol import yaml

OURS: Final = "tessera-"  # what the plugin's files begin with
_READ: Final = (".json", ".yaml")  # all that a container runtime looks at


def cdi(seen: Evidence) -> Iterator[Finding]:
    """The specs say what the plugin says."""
    if seen.cdi is None:
        yield not_applicable("only on a node, with --cdi-dir")
        return
    holders: dict[str, list[str]] = defaultdict(list)
    ours: dict[str, list[str]] = defaultdict(list)
    for file in seen.cdi:
        if not file.name.endswith(_READ):
            continue
        try:
            names = _names(file)
        except InvalidInput as error:
            yield problem(
                f"CDI spec {file.name} cannot be read, its devices cannot be handed out: {short(str(error))}"
            )
            continue
        for name in names:
            holders[name].append(file.name)
            if file.name.startswith(OURS):
                ours[file.name].append(name)
    for name, files in holders.items():
        if len(files) > 1:
            yield problem(
                f"CDI device {name} stands in {' and '.join(files)}: a container runtime takes neither",
                f"ls -l --full-time {' '.join(files)}   # in that folder; the one that no plugin writes any more is stale",
            )
    yield from _compared(seen.devices, ours, holders)


def _compared(
    devices: tuple[str, ...] | None, ours: Mapping[str, list[str]], holders: Collection[str]
) -> Iterator[Finding]:
    """Our specs against the devices that the plugin published; `holders` are the names in any spec."""
    if devices is None:
        if ours:
            yield unseen(
                f"could not compare {' and '.join(sorted(ours))} with the plugin's devices: the state folder has no record of them that "
                "can be read; does --state-dir name the plugin's folder?"
            )
        return
    for file_name, names in ours.items():
        stale = [name for name in names if name not in devices]
        if stale:
            yield warning(
                f"CDI spec {file_name} is stale: it lists {len(stale)} devices that the plugin does not have, "
                f"such as {stale[0]}; a running plugin puts it right within seconds",
                "kubectl get pods -A -l app.kubernetes.io/component=device-plugin -o wide",
            )
    missing = [name for name in devices if name not in holders]
    if missing:
        yield problem(
            f"{len(missing)} devices that the kubelet hands out are in no CDI spec, such as {missing[0]}: "
            "containers that get them do not start; is the plugin's folder the container runtime's?",
            "grep -r cdi_spec_dirs /etc/containerd/config.toml",
        )


def _names(file: CdiFile) -> list[str]:
    document: Any = yaml.load(file.content, file.name)
    try:
        return [f"{document['kind']}={device['name']}" for device in document["devices"]]
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"no CDI spec: {error!r}") from error
