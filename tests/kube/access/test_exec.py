"""Credentials from plugins."""

import asyncio
import base64

import pytest
import uvloop

from tessera.kube.errors import CredentialsFailed
from tessera.kube.rest.client import Client
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.certificates import PlainAuthority
from tests.kube.plugin import Plugin


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_exec_plugin(tmp_path, version):
    """A plugin is run once with its arguments, variables and what it may know; again after a 401."""
    async with await MisbehavingApiServer().start() as server:
        plugin = Plugin(
            tmp_path,
            server.url,
            '{"token": f"token-{count}"}',
            apiVersion=f"client.authentication.k8s.io/{version}",
            provideClusterInfo=True,
        )
        server.tokens = {"token-1"}
        async with Client(plugin.cluster()) as client:
            await asyncio.gather(client.get("/version"), client.get("/version"), client.get("/version"))
            assert plugin.runs() == [
                [
                    ["--region", "x y"],
                    "blue",
                    {
                        "apiVersion": f"client.authentication.k8s.io/{version}",
                        "kind": "ExecCredential",
                        "spec": {
                            "interactive": False,
                            "cluster": {"server": server.url, "config": {"audience": "x"}},
                        },
                    },
                ]
            ]
            server.tokens = {"token-2"}
            await asyncio.gather(client.get("/version"), client.get("/version"))
            assert len(plugin.runs()) == 2


async def test_exec_plugin_expiry(tmp_path):
    """A credential is used until shortly before it expires, and then asked for again."""
    async with await MisbehavingApiServer().start() as server:
        status = (
            '{"token": f"token-{count}", '
            '"expirationTimestamp": "2000-01-01T00:00:00Z" if count == 1 else "2999-01-01T00:00:00Z"}'
        )
        plugin = Plugin(tmp_path, server.url, status)
        server.tokens = {"token-1", "token-2"}
        async with Client(plugin.cluster()) as client:
            for _ in range(3):
                await client.get("/version")
        assert len(plugin.runs()) == 2


async def test_exec_plugin_with_certificate(tmp_path):
    """A plugin may hand out a client certificate."""
    authority = PlainAuthority()
    tls = authority.server_context(tmp_path, clients=True)
    async with await MisbehavingApiServer().start(tls=tls) as server:
        server.tokens = set()
        pair = authority.issue("plugin")
        status = repr(
            {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
        )
        plugin = Plugin(tmp_path, server.url, status)
        plugin.config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(
            authority.pem
        ).decode()
        async with Client(plugin.cluster()) as client:
            await client.get("/version")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"command": "no-such-plugin", "installHint": "brew\n  install it"}, "{}", "the plugin no-such-plugin cannot be run: No such file or directory; brew install it"),
        ({"command": "false"}, "{}", "the plugin false ended with exit code 1"),
        ({"command": "true"}, "{}", "the plugin true did not print an ExecCredential: Input data was truncated"),
        ({"command": "echo", "args": ["{}"]}, "{}", "printed something of no apiVersion, expected ExecCredential of client.authentication.k8s.io/v1"),
        ({}, "{}", "printed neither a token nor a client certificate"),
        ({}, '{"clientKeyData": "x"}', "printed a certificate without its key, or a key without its certificate"),
        ({}, '{"token": "a b"}', "token: a token is one word of printable ASCII characters"),
        ({"interactiveMode": "Always"}, "{}", r"needs a terminal \(interactiveMode: Always\), and there is none"),
    ],
)  # fmt: skip
async def test_exec_plugin_failures(tmp_path, fields, status, message):
    """A plugin that fails is named, with the file and what it did."""
    plugin = Plugin(tmp_path, "http://127.0.0.1:1", status, **fields)
    async with Client(plugin.cluster()) as client:
        with pytest.raises(CredentialsFailed, match=message) as caught:
            await client.get("/version")
        assert str(caught.value).startswith(f'{tmp_path}/config: user "x": exec: ')


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_exec_plugin_that_prints_without_end(tmp_path, runner):
    """Reading ends at the bound, and so does the plugin: 30 MB are never read."""
    script = f"head -c 30000000 /dev/zero; touch {tmp_path}/printed"
    plugin = Plugin(tmp_path, "http://127.0.0.1:1", "{}", command="sh", args=["-c", script])

    async def ask() -> None:
        async with Client(plugin.cluster()) as client:
            with pytest.raises(CredentialsFailed, match="the plugin sh printed more than 1 MiB"):
                await client.get("/version")

    runner(ask())
    assert not (tmp_path / "printed").exists()
