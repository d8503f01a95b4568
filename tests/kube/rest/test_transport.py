"""Getting through: TLS, client certificates, plugins, proxies."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tessera.kube.access.choice import find_cluster, in_cluster
from tessera.kube.access.cluster import Cluster, Endpoint, Proxy, Tls
from tessera.kube.access.credentials import StoredCredentials
from tessera.kube.errors import ApiError, CredentialsFailed, Unreachable
from tessera.kube.rest.client import Client
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.certificates import Authority
from tests.kube.proxy import LittleProxy


@pytest.fixture(scope="module")
def authority():
    """One authority for all tests here."""
    return Authority()


async def serve(
    authority: Authority, folder: Path, *hosts: str, clients: bool = False
) -> MisbehavingApiServer:
    tls = authority.server_context(folder, *hosts, clients=clients)
    return await MisbehavingApiServer().start(tls=tls)


def endpoint_of(server: MisbehavingApiServer) -> Endpoint:
    return Endpoint.parse(server.url, where="test")


async def test_tls(authority, tmp_path):
    """A server is trusted by its authority alone; also by one without key identifiers, as many clusters have it."""
    async with await serve(authority, tmp_path) as server:
        async with Client(Cluster(endpoint_of(server), Tls(ca=authority.pem))) as client:
            await client.get("/version")
        for tls, message in [
            (Tls(ca=Authority("other").pem), "the certificate of .* is not trusted: "),
            (Tls(), "the certificate of .* is not trusted: "),
        ]:
            async with Client(Cluster(endpoint_of(server), tls)) as client:
                with pytest.raises(Unreachable, match=message) as caught:
                    await client.get("/version")
                assert caught.value.kind == "tls"
        async with Client(Cluster(endpoint_of(server), Tls(insecure=True))) as client:
            await client.get("/version")


async def test_server_name(authority, tmp_path):
    """The name in the certificate must be the server's, or the one that the kubeconfig says it has."""
    async with await serve(authority, tmp_path, "kubernetes.default") as server:
        async with Client(Cluster(endpoint_of(server), Tls(ca=authority.pem))) as client:
            with pytest.raises(Unreachable, match="IP address mismatch"):
                await client.get("/version")
        tls = Tls(ca=authority.pem, server_name="kubernetes.default")
        async with Client(Cluster(endpoint_of(server), tls)) as client:
            await client.get("/version")


async def test_client_certificate(authority, tmp_path):
    """A client certificate is shown, and a renewed one is shown on a new connection."""
    async with await serve(authority, tmp_path, clients=True) as server:
        server.tokens = set()  # nobody gets in by a token
        pair = authority.issue("jane")
        files = {"client-certificate": tmp_path / "cert", "client-key": tmp_path / "key"}
        (tmp_path / "cert").write_bytes(pair.certificate)
        (tmp_path / "key").write_bytes(pair.key)
        config = {
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {
                "server": server.url,
                "certificate-authority-data": base64.b64encode(authority.pem).decode(),
            }}],
            "users": [{"name": "x", "user": {name: str(file) for name, file in files.items()}}],
        }  # fmt: skip
        (tmp_path / "config").write_text(json.dumps(config))
        async with Client(find_cluster(tmp_path / "config", environ={})) as client:
            await client.get("/version")
            renewed = authority.issue("jane-renewed")
            (tmp_path / "cert").write_bytes(renewed.certificate)
            (tmp_path / "key").write_bytes(renewed.key)
            await client.get("/version")
        certificates: list[Any] = [request.certificate for request in server.requests]
        subjects = [dict(one["subject"][0])["commonName"] for one in certificates]
        assert subjects == ["jane", "jane-renewed"]


async def test_bad_client_certificate(authority, tmp_path):
    """A pair that does not match, an encrypted key or no PEM at all is one sentence."""
    async with await serve(authority, tmp_path) as server:
        one, other = authority.issue("a"), authority.issue("b")
        for certificate, key in [(one.certificate, other.key), (b"x", b"y"), (one.certificate, b"")]:
            credentials = StoredCredentials(certificate=certificate, key=key)
            async with Client(Cluster(endpoint_of(server), Tls(ca=authority.pem), credentials)) as client:
                with pytest.raises(CredentialsFailed, match="client certificate and key: "):
                    await client.get("/version")


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (Tls(ca=b"nothing"), "certificate authority: there is no PEM certificate in it"),
        (
            Tls(ca=Path("/nope/ca")),
            "certificate authority: cannot read /nope/ca: No such file",
        ),
    ],
)
async def test_bad_tls_settings(tls, message):
    """Settings that cannot work are one sentence, each time they are tried: files may be on their way."""
    async with await MisbehavingApiServer().start() as server:
        endpoint = Endpoint("https", "127.0.0.1", server._http.port)
        async with Client(Cluster(endpoint, tls)) as client:
            for _ in range(2):
                with pytest.raises(CredentialsFailed, match=message):
                    await client.get("/version")


async def test_comments_in_an_authority(authority, tmp_path):
    """Bundles have comments, in any language."""
    async with await serve(authority, tmp_path) as server:
        bundle = "# Größe des Clusters: groß\n".encode() + authority.pem
        async with Client(Cluster(endpoint_of(server), Tls(ca=bundle))) as client:
            await client.get("/version")


async def test_in_cluster_with_renewed_token_and_authority(authority, tmp_path):
    """In a pod, the token and the authority are read again when they change: a token that expired is no failure."""
    async with await serve(authority, tmp_path) as server:
        (tmp_path / "token").write_text("one")
        (tmp_path / "ca.crt").write_bytes(Authority("old").pem + authority.pem)
        endpoint = endpoint_of(server)
        environ = {"KUBERNETES_SERVICE_HOST": endpoint.host, "KUBERNETES_SERVICE_PORT": str(endpoint.port)}
        server.tokens = {"one"}
        async with Client(in_cluster(environ, tmp_path)) as client:
            await client.get("/version")
            server.tokens = {"two"}
            (tmp_path / "token").write_text("two")
            (tmp_path / "ca.crt").write_bytes(authority.pem)
            await client.get("/version")
            server.tokens = {"three"}
            with pytest.raises(ApiError, match="401 Unauthorized"):
                await client.get("/version")


PLUGIN = """\
#!{python}
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
runs = os.path.join(os.path.dirname(__file__), "runs")
with open(runs, "a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ.get("COLOUR"), info]) + "\\n")
count = sum(1 for _ in open(runs))
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": {status}}}))
"""


class Plugin:
    """A real little plugin, and a kubeconfig that uses it."""

    def __init__(self, folder: Path, server_url: str, status: str, **fields: object) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        script = folder / "bin" / "plugin"
        script.write_text(PLUGIN.format(python=sys.executable, status=status))
        script.chmod(0o755)
        self.exec = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./bin/plugin",
            "args": ["--region", "x y"],
            "env": [{"name": "COLOUR", "value": "blue"}],
            "interactiveMode": "Never",
            **fields,
        }
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
        self.config: dict[str, Any] = {
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server_url, "extensions": [extension]}}],
            "users": [{"name": "x", "user": {"exec": self.exec}}],
        }

    def cluster(self) -> Cluster:
        (self.folder / "config").write_text(json.dumps(self.config))
        return find_cluster(self.folder / "config", environ={})

    def runs(self) -> list[list[object]]:
        lines = (self.folder / "bin" / "runs").read_text().splitlines()
        return [json.loads(line) for line in lines]


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


async def test_exec_plugin_with_certificate(authority, tmp_path):
    """A plugin may hand out a client certificate."""
    async with await serve(authority, tmp_path, clients=True) as server:
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
        ({"interactiveMode": "Always"}, "{}", r"wants to ask a person \(interactiveMode: Always\), and there is no terminal"),
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


async def test_proxy(authority, tmp_path):
    """Through a proxy by CONNECT: names are resolved there, TLS goes through it, watches too."""
    async with await serve(authority, tmp_path, "api.cluster.test") as server:
        routes = {"api.cluster.test:6443": endpoint_of(server).port}
        async with LittleProxy("me:secret", routes) as proxy:
            cluster = Cluster(
                Endpoint("https", "api.cluster.test", 6443),
                Tls(ca=authority.pem),
                proxy=Proxy("http", "127.0.0.1", proxy.port, "me:secret"),
            )
            async with Client(cluster) as client:
                await client.get("/version")
                await client.get("/version")
                assert len(proxy.heads) == 1
                assert proxy.heads[0].startswith("CONNECT api.cluster.test:6443 HTTP/1.1\r\n")
                await client.create("/api/v1/nodes", {"metadata": {"name": "n"}})
                async with client.watch("/api/v1/nodes") as lines:
                    assert len(await lines.batch()) == 1


async def test_proxy_refuses(authority):
    """A proxy that says no is quoted."""
    async with LittleProxy("me:secret") as proxy:
        cluster = Cluster(Endpoint("https", "api.test", 6443), proxy=Proxy("http", "127.0.0.1", proxy.port))
        async with Client(cluster) as client:
            message = 'the proxy .* answered CONNECT api.test:6443 with "HTTP/1.1 407 Proxy Authentication Required"'
            with pytest.raises(Unreachable, match=message) as caught:
                await client.get("/version")
            assert caught.value.kind == "proxy"
    async with Client(cluster) as client:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:\d+ refused the connection"):
            await client.get("/version")


async def test_plain_server_behind_a_proxy():
    """A server without TLS is asked for through the proxy by its whole URL."""
    async with await MisbehavingApiServer().start() as server, LittleProxy("me:x") as proxy:
        proxy.routes["api.test:80"] = server._http.port
        through = Proxy("http", "127.0.0.1", proxy.port, "me:x")
        async with Client(Cluster(Endpoint("http", "api.test", 80), proxy=through)) as client:
            await client.get("/version")
        assert proxy.heads[0].startswith("GET http://api.test:80/version HTTP/1.1\r\n")


def test_under_uvloop(authority, tmp_path):
    """All this works on the webhook's event loop too: TLS, a proxy, a plugin, a watch."""

    async def everything() -> None:
        async with await serve(authority, tmp_path, "api.cluster.test") as server:
            plugin = Plugin(tmp_path, "https://api.cluster.test:6443", '{"token": "t"}')
            server.tokens = {"t"}
            routes = {"api.cluster.test:6443": endpoint_of(server).port}
            async with LittleProxy(routes=routes) as proxy:
                entry = plugin.config["clusters"][0]["cluster"]
                entry["certificate-authority-data"] = base64.b64encode(authority.pem).decode()
                entry["proxy-url"] = f"http://127.0.0.1:{proxy.port}"
                async with Client(plugin.cluster()) as client:
                    await client.create("/api/v1/nodes", {"metadata": {"name": "n"}})
                    async with client.watch("/api/v1/nodes") as lines:
                        assert len(await lines.batch()) == 1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(everything(), 20))


async def test_a_server_that_wants_tls_when_we_do_not(authority, tmp_path):
    """Plain HTTP to a TLS port is an error of one sentence, and so is TLS to a plain port."""
    async with await serve(authority, tmp_path) as server:
        plain = Endpoint("http", "127.0.0.1", endpoint_of(server).port)
        async with Client(Cluster(plain)) as client:
            with pytest.raises(Unreachable):
                await client.get("/version")
    async with await MisbehavingApiServer().start() as other:
        tls = Endpoint("https", "127.0.0.1", other._http.port)
        async with Client(Cluster(tls, Tls(insecure=True))) as client:
            with pytest.raises(Unreachable):
                await client.get("/version")


async def test_proxy_with_tls(authority, tmp_path, monkeypatch):
    """A proxy that is itself spoken to by TLS: the tunnel's TLS goes inside."""
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))  # the machine's authorities, for the proxy
    inner = Authority("inner")
    async with await serve(inner, tmp_path, "api.cluster.test") as server:
        outer = authority.server_context(tmp_path, "localhost")
        async with LittleProxy(
            routes={"api.cluster.test:6443": endpoint_of(server).port}, tls=outer
        ) as proxy:
            through = Proxy("https", "localhost", proxy.port)
            endpoint = Endpoint("https", "api.cluster.test", 6443)
            async with Client(Cluster(endpoint, Tls(ca=inner.pem), proxy=through)) as client:
                await client.get("/version")
                await client.get("/version")
            assert len(proxy.heads) == 1


async def test_many_calls_at_once():
    """A crowd of calls shares a bounded number of connections."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        await asyncio.gather(*(client.get("/version") for _ in range(200)))
        assert server.connections <= 32
