"""Where keys and certificates come from: a program that is asked once and ends (`pki` says why)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from tessera.core.errors import TesseraError
from tessera.webhook.certificates.authorities import authorities_in
from tessera.webhook.certificates.rotation import Authority

_TIMEOUT_SECONDS: Final = 30.0  # it takes a tenth of a second on a machine that has nothing else to do


class SigningFailed(TesseraError):
    """No certificate could be made."""


class MakeAuthority(msgspec.Struct, tag="authority"):
    """Ask for a new authority."""

    not_before: float
    not_after: float


class SignLeaf(msgspec.Struct, tag="leaf"):
    """Ask for a key and a certificate for these DNS names."""

    certificate: bytes  # the authority's
    key: bytes
    names: list[str]
    not_before: float
    not_after: float


class Inspect(msgspec.Struct, tag="inspect"):
    """Ask from when until when a certificate is valid."""

    certificate: bytes


Question = MakeAuthority | SignLeaf | Inspect


class Made(msgspec.Struct):
    """A certificate and its key, PEM; or why there are none."""

    certificate: bytes = b""
    key: bytes = b""
    not_before: float = 0.0
    not_after: float = 0.0
    error: str = ""


# Answers such questions: a process of its own (`run_program`), or a function in this one (`pki.ask`)
Program = Callable[[Question], Awaitable[Made]]


class Signer:
    """Makes authorities, and signs with them; raises `SigningFailed`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    async def _ask(self, question: Question) -> Made:
        made = await self._program(question)
        if made.error:
            raise SigningFailed(made.error)
        return made

    async def authority(self, not_before: float, not_after: float) -> Authority:
        made = await self._ask(MakeAuthority(not_before, not_after))
        (found,) = authorities_in(made.certificate)
        return replace(found, key=made.key)

    async def leaf(
        self, authority: Authority, names: Sequence[str], not_before: float, not_after: float
    ) -> Made:
        question = SignLeaf(authority.certificate, authority.key, list(names), not_before, not_after)
        return await self._ask(question)

    async def validity(self, certificate: bytes) -> tuple[float, float]:
        """When a certificate's validity begins and ends."""
        made = await self._ask(Inspect(certificate))
        return made.not_before, made.not_after


async def run_program(question: Question) -> Made:
    """Ask a fresh process; keys go through pipes only."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",  # no variable and no folder of the process decides what code signs
        "-m",
        "tessera.webhook.certificates.pki",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            answer, errors = await process.communicate(msgspec.json.encode(question))
    except TimeoutError as error:
        raise SigningFailed(f"making a certificate took more than {_TIMEOUT_SECONDS:.0f} seconds") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise SigningFailed(f"making a certificate failed: {last or f'exit code {process.returncode}'}")
    return msgspec.json.decode(answer, type=Made)
