"""Status objects: how an API server says no."""

from typing import Final

import msgspec

from tessera.kube.errors import ApiError

# what a decoder raises for bytes that are not the JSON they should be
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


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


def error_of(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error that a Status object, or a gateway's page of HTML, speaks of."""
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
    return ApiError(status.code or code, status.reason, status.message, causes=causes, retry_after=wait)
