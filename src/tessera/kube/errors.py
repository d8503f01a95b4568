"""What can go wrong between Tessera and an API server, by name.

Every error has a `kind`, one word that counts it in metrics, and is one sentence for a person.
"""

from typing import Final

import msgspec

from tessera.core.errors import InvalidInput, TesseraError

# what a decoder raises for bytes that are not the JSON they should be
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class InvalidKubeconfig(InvalidInput):
    """A kubeconfig, or the surroundings of a pod, that lead to no cluster."""


class NoCluster(TesseraError):
    """There is no kubeconfig, and this is not a pod, or its service account is missing."""


class KubeError(TesseraError):
    """A call to the API server that failed."""

    kind = "other"


class Unreachable(KubeError):
    """No complete answer came; `kind` says at which stage: dns, refused, network, tls, proxy, timeout, closed."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class BadResponse(KubeError):
    """An answer that is no HTTP, no JSON, or larger than anything an API server sends."""

    kind = "protocol"


class CredentialsFailed(KubeError):
    """There are no credentials: a plugin failed, or a token cannot be read."""

    kind = "credentials"


class ApiError(KubeError):
    """The API server refused: a Kubernetes Status, or any HTTP status of 400 and above."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        warnings: str = "",
    ) -> None:
        super().__init__(f"the API server answered {code}{' ' + reason if reason else ''}: {message}")
        self.code = code
        self.kind = f"http_{code}"  # few enough to be a metric's label
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        self.warnings = warnings  # of admission webhooks, as in the header
        self.is_not_found = code == 404
        self.is_forbidden = code == 403
        # there is no such API or object, or it is not ours to read
        self.is_absent = code in (403, 404)
        # the API server itself cannot serve, whatever is asked for
        self.is_unavailable = code in (429, 503)
        # another client changed the object first (an update), or made it first (a create)
        self.is_conflict = code == 409
        # the API server has too much to do; of an eviction: a PodDisruptionBudget allows none now
        self.is_too_many = code == 429
        # the version asked for is too old to be known
        self.is_expired = code == 410 or reason in ("Expired", "Gone")
        # the version asked for is newer than anything the server has seen, as after a restore
        self.is_too_large_version = (
            "ResourceVersionTooLarge" in causes or "Too large resource version" in message
        )


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: float | None = None  # noqa: N815 # as it is on the wire


class _Status(msgspec.Struct):
    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(_Status)


def error_of(code: int, body: bytes, retry_after: str | None = None, warnings: str = "") -> ApiError:
    """The error that a Status object, or a gateway's page of HTML, describes."""
    try:
        status = _STATUS.decode(body)
    except NOT_JSON:
        status = _Status()
    if status.kind != "Status":
        text = " ".join(body[:200].decode("utf-8", "replace").split())
        status = _Status(message=text or "no explanation", code=code)
    details = status.details or _Details()
    wait = None
    if retry_after is not None and code >= 429:
        wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1.0
    elif code == 429:
        wait = details.retryAfterSeconds or 1.0
    causes = tuple(cause.reason for cause in details.causes or ())
    code = status.code or code
    return ApiError(code, status.reason, status.message, causes=causes, retry_after=wait, warnings=warnings)
