"""Which proxy, if any: the environment's answer, by the rules of Go's net/http, which kubectl follows."""

import ipaddress
from collections.abc import Mapping

from tessera.kube.access.cluster import Proxy, ServerAddress


def proxy_from_environment(endpoint: ServerAddress, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy for an API server by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in either spelling."""
    name = "HTTPS_PROXY" if endpoint.scheme == "https" else "HTTP_PROXY"
    for spelling in (name, name.lower()):
        if text := environ.get(spelling):
            no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
            return None if is_exempt(endpoint, no_proxy) else Proxy.parse(text, where=spelling)
    return None


def is_exempt(endpoint: ServerAddress, no_proxy: str) -> bool:
    """Whether NO_PROXY, or being this very machine, keeps a host away from the proxy."""
    host = endpoint.host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, endpoint.port) for entry in no_proxy.split(","))


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _matches(entry: str, host: str, address: _Address | None, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry) is None:
        entry, _, wanted_port = entry.rpartition(":") if ":" in entry else (entry, "", "")
        if wanted_port and wanted_port != str(port):
            return False
    entry_address = _address(entry.strip("[]"))
    if entry_address is not None:
        return address == entry_address
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith("." + entry)


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
