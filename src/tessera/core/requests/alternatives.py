"""What a claim may be served with, in order: the text that a pod carries, and the name that is made from it.

The webhook writes the text into the pod and names a ResourceClaimTemplate by its hash. The controller reads the text,
checks the hash, and makes exactly that template. So the two need no other word between them, and neither a person nor
another controller can make the controller write anything but a claim for devices.

    1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any;2*3g.30gb=…

A request for each container and profile: how many, what was asked, then the alternatives, best first, each with its
DeviceClass.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU, is_qualified_name, of_short, short
from tessera.core.text import quoted
from tessera.core.values import value

ALTERNATIVES_ANNOTATION: Final = "gpu-webhook.k8s.io/alternatives"
CLAIM: Final = "tessera-gpu"  # the name of the claim inside of the pod

# limits of resource.k8s.io/v1 (pkg/apis/resource/types.go)
MOST_ALTERNATIVES: Final = 8  # FirstAvailableDeviceRequestMaxSize
MOST_REQUESTS: Final = 32  # DeviceRequestsMaxSize
MOST_DEVICES: Final = 32  # AllocationResultsMaxSize: of one claim

# of the chart: every device of the driver; a request that names it says which it wants
GENERAL_CLASS: Final = "tessera-any"

# bytes; 32 requests with 8 alternatives and the chart's names have 7 KiB. The controller keeps it of every pod, and a tenant can have thousands
_LONGEST: Final = 8 * 1024
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_CLASS: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*", re.ASCII)  # a DNS subdomain


@value
class Alternative:
    """One type of device, and the class that a claim asks for it by."""

    resource: str
    device_class: str

    @property
    def name(self) -> str:
        """The name of the alternative in its request: a DNS label."""
        return short(self.resource).replace(".", "-")

    @property
    def expression(self) -> str:
        """What selects the devices, beside the class; empty where the class says it all."""
        return own_expression(self.resource) if self.device_class == GENERAL_CLASS else ""


@value
class DeviceRequest:
    """What one container asks for of one profile."""

    asked: str
    count: int
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        few = ",".join(f"{short(one.resource)}/{one.device_class}" for one in self.alternatives)
        return f"{self.count}*{short(self.asked)}={few}"

    @property
    def words(self) -> str:
        return ", else ".join(short(one.resource) for one in self.alternatives)


@value
class Alternatives:
    """All requests of a pod's claim."""

    requests: tuple[DeviceRequest, ...]

    def __str__(self) -> str:
        return ";".join(map(str, self.requests))

    @property
    def template(self) -> str:
        return template_name(str(self))

    @property
    def words(self) -> str:
        few = [one.words if one.count == 1 else f"{one.count} × ({one.words})" for one in self.requests]
        return "; ".join(few)

    def devices(self, given: Mapping[str, str] | None = None) -> dict[str, int]:
        """What was asked, by resource; `given`: what was given in place of what was asked."""
        found: dict[str, int] = {}
        for one in self.requests:
            resource = (given or {}).get(one.asked, one.asked)
            found[resource] = found.get(resource, 0) + one.count
        return found

    def choices(self) -> tuple[dict[str, int], ...]:
        """The devices that would do, best first: every request with its first alternative, then with its second, and so on.

        The scheduler lets each request fall back by itself: of several requests these are not all ways to serve them.
        """
        last = [one.alternatives[-1] for one in self.requests]
        found = []
        for step in zip_longest(*(one.alternatives for one in self.requests)):
            choice: dict[str, int] = {}
            for request, one, least in zip(self.requests, step, last, strict=True):
                resource = (one or least).resource
                choice[resource] = choice.get(resource, 0) + request.count
            found.append(choice)
        return tuple(found)

    def taken(self, results: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """What was asked and what was given, of the requests that an allocation names (`gpu-0/1g-10gb`), each pair once."""
        pairs: dict[tuple[str, str], None] = {}
        for number, request in enumerate(self.requests):
            for one in request.alternatives:
                if f"{request_name(number)}/{one.name}" in results:
                    pairs[request.asked, one.resource] = None
        return tuple(pairs)


def request_name(number: int) -> str:
    """The name of a request in the claim, by its place."""
    return f"gpu-{number}"


def template_name(text: str) -> str:
    """The name that a text stands for: 128 bits of its hash."""
    return f"tessera-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def carried(annotations: Mapping[str, str], templates: Collection[str]) -> Alternatives | None:
    """What a pod's claim may be served with, by its annotations and the templates that it names.

    None where the bridge made no claim of its request: what it carries must be what its template is named by.
    """
    text = annotations.get(ALTERNATIVES_ANNOTATION)
    if text is None or template_name(text) not in templates:
        return None
    try:
        return read(text)
    except InvalidInput:
        return None


def own_expression(resource: str) -> str:
    """What selects a type of device of Tessera's own driver, in the very words of the chart's classes.

    The scheduler keeps the ten last expressions that it compiled: the same thing is always said in the same words.
    """
    attributes = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}']"
    if resource == WHOLE_GPU:
        return f"{attributes}.type == 'gpu'"
    return f"{attributes}.profile == '{MigProfile.of_resource(resource) or ''}'"


def is_writable(alternatives: Alternatives) -> bool:
    """Whether the text is one that `read` takes, and so the controller."""
    return len(str(alternatives)) <= _LONGEST


# A cluster's pods have few different ones. The largest that a tenant can write takes 100 KiB: 13 MiB of them in all.
@lru_cache(maxsize=128)
def read(text: str) -> Alternatives:
    """Read the text of an annotation; `InvalidInput` for anything that the webhook would not write."""
    if len(text) > _LONGEST:
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: longer than {_LONGEST} characters")
    found = Alternatives(tuple(map(_request, text.split(";"))))
    devices = sum(one.count for one in found.requests)
    if len(found.requests) > MOST_REQUESTS or devices > MOST_DEVICES:
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: more devices than a claim can have")
    if str(found) != text:
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: {quoted(text)} is not how the webhook writes it")
    return found


def _request(text: str) -> DeviceRequest:
    head, equals, tail = text.partition("=")
    count, star, asked = head.partition("*")
    if not (equals and star and count.isascii() and count.isdigit() and 0 < int(count[:3]) <= MOST_DEVICES):
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: {quoted(text)} is no request such as 1*2g.20gb=…")
    alternatives = tuple(map(_alternative, tail.split(",")))
    if len(alternatives) > MOST_ALTERNATIVES or len({one.name for one in alternatives}) < len(alternatives):
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: {quoted(tail)}: too many, or one of them twice")
    return DeviceRequest(of_short(asked), int(count), alternatives)


def _alternative(text: str) -> Alternative:
    name, slash, device_class = text.partition("/")
    resource = of_short(name)
    if not slash or not _CLASS.fullmatch(device_class) or not is_qualified_name(resource):
        raise InvalidInput(f"{ALTERNATIVES_ANNOTATION}: {quoted(text)} is no type with its class")
    return Alternative(resource, device_class)
