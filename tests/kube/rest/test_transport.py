"""Getting through: TLS, client certificates, proxies."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tessera.kube.access.cluster import Cluster, Proxy, ServerAddress, StoredCredentials, Tls
from tessera.kube.access.kubeconfig import find_cluster, in_cluster
from tessera.kube.errors import ApiError, CredentialsFailed, Unreachable
from tessera.kube.rest.client import Client
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.certificates import PlainAuthority
from tests.kube.plugin import Plugin
from tests.kube.proxy import LittleProxy


@pytest.fixture(scope="module")
def authority():
    """One authority for all tests here."""
    return PlainAuthority()


async def serve(
    authority: PlainAuthority, folder: Path, *hosts: str, clients: bool = False
) -> MisbehavingApiServer:
    tls = authority.server_context(folder, *hosts, clients=clients)
    return await MisbehavingApiServer().start(tls=tls)


def endpoint_of(server: MisbehavingApiServer) -> ServerAddress:
    return ServerAddress.parse(server.url, where="test")


async def test_tls(authority, tmp_path):
    """A server is trusted by its authority alone; also by one without key identifiers, as many clusters have it."""
    async with await serve(authority, tmp_path) as server:
        async with Client(Cluster(endpoint_of(server), Tls(ca=authority.pem))) as client:
            await client.get("/version")
        for tls, message in [
            (Tls(ca=PlainAuthority("other").pem), "the certificate of .* is not trusted: "),
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
        server.tokens = set()  # no token is good
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
        endpoint = ServerAddress("https", "127.0.0.1", server._http.port)
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
        (tmp_path / "ca.crt").write_bytes(PlainAuthority("old").pem + authority.pem)
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


async def test_proxy(authority, tmp_path):
    """Through a proxy by CONNECT: names are resolved there, TLS goes through it, watches too."""
    async with await serve(authority, tmp_path, "api.cluster.test") as server:
        routes = {"api.cluster.test:6443": endpoint_of(server).port}
        async with LittleProxy("me:secret", routes) as proxy:
            cluster = Cluster(
                ServerAddress("https", "api.cluster.test", 6443),
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
        cluster = Cluster(
            ServerAddress("https", "api.test", 6443), proxy=Proxy("http", "127.0.0.1", proxy.port)
        )
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
        async with Client(Cluster(ServerAddress("http", "api.test", 80), proxy=through)) as client:
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
        plain = ServerAddress("http", "127.0.0.1", endpoint_of(server).port)
        async with Client(Cluster(plain)) as client:
            with pytest.raises(Unreachable):
                await client.get("/version")
    async with await MisbehavingApiServer().start() as other:
        tls = ServerAddress("https", "127.0.0.1", other._http.port)
        async with Client(Cluster(tls, Tls(insecure=True))) as client:
            with pytest.raises(Unreachable):
                await client.get("/version")


async def test_proxy_with_tls(authority, tmp_path, monkeypatch):
    """A proxy that is itself spoken to by TLS: the tunnel's TLS goes inside."""
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))  # the machine's authorities, for the proxy
    inner = PlainAuthority("inner")
    async with await serve(inner, tmp_path, "api.cluster.test") as server:
        outer = authority.server_context(tmp_path, "localhost")
        async with LittleProxy(
            routes={"api.cluster.test:6443": endpoint_of(server).port}, tls=outer
        ) as proxy:
            through = Proxy("https", "localhost", proxy.port)
            endpoint = ServerAddress("https", "api.cluster.test", 6443)
            async with Client(Cluster(endpoint, Tls(ca=inner.pem), proxy=through)) as client:
                await client.get("/version")
                await client.get("/version")
            assert len(proxy.heads) == 1


async def test_many_calls_at_once():
    """A crowd of calls shares a bounded number of connections."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        await asyncio.gather(*(client.get("/version") for _ in range(200)))
        assert server.connections <= 32
