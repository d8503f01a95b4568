"""Tickets: by them the controller knows which pods the webhook has converted.

A template's name is a public hash, so a pod's author can write the alternatives and the name by hand. The webhook adds a ticket
that no other program can compute: an HMAC over the pod's namespace, the hour, and the text of the alternatives.

    <key id>.<hour>.<HMAC-SHA256, hexadecimal>

The hour is the number of whole hours since 1970. Webhook and controller share the key (`kube.view.ticket_keys`).
"""

import hashlib
import hmac
import re
from dataclasses import field
from typing import Final

from tessera.core.values import value

TICKET_ANNOTATION: Final = "gpu-webhook.k8s.io/ticket"
KEY_BYTES: Final = 32  # of a key: as long as the HMAC
_TICKET: Final = re.compile(r"([0-9a-f]{16})\.([0-9]{1,9})\.([0-9a-f]{64})", re.ASCII)
_LONGEST: Final = 16 + 1 + 9 + 1 + 64
_HOUR: Final = 3600.0  # seconds
_HOURS_APART: Final = 1  # of ticket and pod: the pod is created just after its admission, and clocks differ


@value
class TicketKey:
    """A key that tickets are made and checked with."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Its name in a ticket, which says nothing about the key itself."""
        return hashlib.sha256(b"tessera ticket key\n" + self.secret).hexdigest()[:16]

    def code(self, namespace: str, text: str, hour: int) -> str:
        """The HMAC of a pod's namespace, the text of its alternatives, and the hour. No namespace has a line break."""
        message = f"tessera ticket\n{namespace}\n{hour}\n{text}"
        return hmac.new(self.secret, message.encode(), hashlib.sha256).hexdigest()


@value
class TicketMaker:
    """What tickets are made with at one moment: the key in use, and the hour."""

    key: TicketKey | None
    hour: int

    def ticket(self, namespace: str, text: str) -> str:
        """The ticket of a pod; empty without a key."""
        if self.key is None:
            return ""
        return f"{self.key.id}.{self.hour}.{self.key.code(namespace, text, self.hour)}"


# Of a view that only shows what would be decided, such as that of `tessera admit`: requests become claims, without a ticket.
NO_TICKETS: Final = TicketMaker(None, 0)


@value
class TicketKeys:
    """The keys that are accepted: the one in use, the one that follows it, and the one that was in use before."""

    current: TicketKey
    following: TicketKey
    previous: TicketKey | None = None

    def why_wrong(self, ticket: str, namespace: str, text: str, created: float) -> str | None:
        """What is wrong with the ticket of a pod that was created at a time (Unix time); None: it is right."""
        if not ticket:
            return "it has no ticket of the webhook"
        match = _TICKET.fullmatch(ticket)
        if match is None:
            return "its ticket is not one of the webhook"
        key_id, hour, code = match[1], int(match[2]), match[3]
        every = (self.current, self.following, self.previous)
        key = next((one for one in every if one is not None and one.id == key_id), None)
        if key is None:
            return "its ticket was made with a key that is no longer accepted"
        # with the hour as it is written, so that there is one way to write a ticket
        if str(hour) != match[2] or not hmac.compare_digest(key.code(namespace, text, hour), code):
            return "its ticket is not for its namespace and its alternatives"
        if abs(hour_of(created) - hour) > _HOURS_APART:
            return "its ticket is from another hour than the pod"
        return None


def hour_of(seconds: float) -> int:
    return int(seconds // _HOUR)


def kept(ticket: str) -> str:
    """A pod's ticket as it is kept until it is checked: one that is too long is none, and takes no memory."""
    return ticket if len(ticket) <= _LONGEST else "too long"
