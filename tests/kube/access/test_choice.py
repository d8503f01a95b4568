"""Finding the cluster: kubeconfig files, contexts, pods."""

import base64
import json
import os
from pathlib import Path

import pytest

from tessera.core.errors import InvalidInput
from tessera.kube import files
from tessera.kube.access.cluster import Credential, Proxy, ServerAddress
from tessera.kube.access.kubeconfig import find_cluster, in_cluster, known_contexts
from tessera.kube.errors import CredentialsFailed, InvalidKubeconfig, NoCluster
from tessera.kube.rest.client import Client
from tests.kube.clock import FakeClock


def config(**sections: object) -> str:
    """A kubeconfig with one of each, and other sections as given."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "preferences": {},
    }
    return json.dumps(document | sections)


def cluster_entry(**fields: object) -> list[object]:
    return [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **fields}}]


def user_entry(**fields: object) -> list[object]:
    return [{"name": "u", "user": fields}]


def found(tmp_path: Path, text: str, context: str | None = None, **environ: str):
    file = tmp_path / "config"
    file.write_text(text)
    return find_cluster(file, context, environ=environ)


async def test_plain(tmp_path):
    """Server, token and namespace of the current context."""
    cluster = found(tmp_path, config())
    assert cluster.endpoint == ServerAddress("https", "10.0.0.1", 6443)
    assert cluster.namespace == "team"
    assert await cluster.credentials.current() == Credential("t0ken")
    assert await cluster.credentials.renewed(Credential("t0ken")) is None
    assert cluster.source == f'context "dev" of {tmp_path}/config'


@pytest.mark.parametrize(
    ("server", "endpoint"),
    [
        ("https://10.0.0.1:6443", ServerAddress("https", "10.0.0.1", 6443)),
        ("https://example.com", ServerAddress("https", "example.com", 443)),
        (
            "https://example.com/k8s/clusters/c-1/",
            ServerAddress("https", "example.com", 443, "/k8s/clusters/c-1"),
        ),
        ("https://[fd00::1]:6443", ServerAddress("https", "fd00::1", 6443)),
        ("http://127.0.0.1:8001", ServerAddress("http", "127.0.0.1", 8001)),
        ("localhost:8080", ServerAddress("http", "localhost", 8080)),
    ],
)
def test_servers(tmp_path, server, endpoint):
    """A server in each way of writing it."""
    text = config(clusters=[{"name": "c", "cluster": {"server": server}}])
    assert found(tmp_path, text).endpoint == endpoint


def test_server_without_scheme_but_with_tls(tmp_path):
    """Without a scheme, TLS settings make it https, as for kubectl."""
    text = config(clusters=[{"name": "c", "cluster": {"server": "host:1", "insecure-skip-tls-verify": True}}])
    assert found(tmp_path, text).endpoint.scheme == "https"


def test_authority_of_ipv6():
    """An IPv6 address has brackets where a port follows."""
    assert ServerAddress("https", "fd00::1", 6443).authority == "[fd00::1]:6443"


@pytest.mark.parametrize(
    ("sections", "context", "message"),
    [
        ({"current-context": ""}, None, "{file}: current-context is not set; choose one with --context: dev"),
        ({"contexts": None, "current-context": ""}, None, "{file}: current-context is not set; it has no contexts"),
        ({}, "prod", '{file}: there is no context "prod"; choose one with --context: dev'),
        ({"clusters": []}, None, '{file}: context "dev": cluster: there is no cluster "c"'),
        ({"users": []}, None, '{file}: context "dev": user: there is no user "u"'),
        ({"clusters": [{"name": "c", "cluster": {}}]}, None, '{file}: cluster "c": server: missing'),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, None, '{file}: cluster "c": server: "ftp://x" is not a URL such as https://10.0.0.1:6443'),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://x:y"}}]}, None, '{file}: cluster "c": server: "https://x:y" is not a URL: Port could not be cast to integer value as \'y\''),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://me@x"}}]}, None, '{file}: cluster "c": server: a server is a host, a port and a path, nothing else'),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://a..b"}}]}, None, '{file}: cluster "c": server: "https://a..b" is not a URL such as https://10.0.0.1:6443'),
        ({"clusters": cluster_entry(**{"tls-server-name": ".x"})}, None, '{file}: cluster "c": tls-server-name: ".x" is not a host name'),
        ({"clusters": {"c": {}}}, None, "{file}: clusters: expected array, got object"),
        ({"users": user_entry(token=5)}, None, "{file}: users[0].user.token: expected str, got int"),
        ({"clusters": cluster_entry(**{"certificate-authority-data": "%%"})}, None, '{file}: cluster "c": certificate-authority-data: not base64'),
        ({"clusters": cluster_entry(**{"certificate-authority": "x", "insecure-skip-tls-verify": True})}, None, '{file}: cluster "c": insecure-skip-tls-verify: cannot be true together with a certificate-authority'),
        ({"clusters": cluster_entry(**{"proxy-url": "socks5://x:1"})}, None, '{file}: cluster "c": proxy-url: a proxy is http://host:port or https://host:port'),
        ({"users": user_entry(username="a", password="b")}, None, '{file}: user "u": username: API servers no longer take passwords; use a token, a certificate or exec'),
        ({"users": user_entry(**{"auth-provider": {"name": "gcp"}})}, None, '{file}: user "u": auth-provider: replaced by exec plugins in Kubernetes 1.26'),
        ({"users": user_entry(**{"client-certificate": "x"})}, None, '{file}: user "u": client-key: missing; a certificate needs its key'),
        ({"users": user_entry(**{"as-groups": ["a"]})}, None, '{file}: user "u": as: missing; groups and extra fields need a user'),
        ({"users": user_entry(**{"as": "a\nHost: x"})}, None, '{file}: user "u": as: printable ASCII characters only'),
        ({"users": user_entry(exec={"apiVersion": "client.authentication.k8s.io/v1"})}, None, '{file}: user "u": exec.command: missing'),
        ({"users": user_entry(exec={"command": "x", "apiVersion": "v1"})}, None, '{file}: user "u": exec.apiVersion: expected client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1, got v1'),
        ({"users": user_entry(exec={"command": "x", "apiVersion": "client.authentication.k8s.io/v1"})}, None, '{file}: user "u": exec.interactiveMode: expected Never, IfAvailable, Always, got nothing'),
        ({"kind": "Pod"}, None, "{file}: kind: expected Config, got Pod"),
    ],
)  # fmt: skip
def test_complaints(tmp_path, sections, context, message):
    """Whatever is wrong is one sentence that names the file and the field."""
    with pytest.raises(InvalidKubeconfig) as caught:
        found(tmp_path, config(**sections), context)
    assert str(caught.value) == message.format(file=tmp_path / "config")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("- a\n", "expected a kubeconfig"),
        ("a: [", "line 2, column 1"),
        ("\x00", "config"),
    ],
)
def test_no_kubeconfig(tmp_path, text, message):
    """A file that is no kubeconfig is refused by name."""
    with pytest.raises(InvalidInput, match=message) as caught:
        found(tmp_path, text)
    assert str(tmp_path / "config") in str(caught.value)


def test_missing_file(tmp_path):
    """A file given by name must be there."""
    with pytest.raises(
        InvalidKubeconfig, match=r"cannot read the kubeconfig .*/nope: no such file or directory"
    ):
        find_cluster(tmp_path / "nope", environ={})


async def test_merge(tmp_path):
    """Of several files the first that says something wins, entry by entry; missing ones are left out."""
    (tmp_path / "one").mkdir()
    first, second = tmp_path / "one" / "a", tmp_path / "b"
    first.write_text(
        config(
            **{"current-context": ""},
            clusters=None,
            users=user_entry(tokenFile="token"),
            contexts=[{"name": "dev", "context": {"cluster": "c", "user": "u"}}],
        )
    )
    (tmp_path / "one" / "token").write_text("from the first\n".replace(" ", "-"))
    second.write_text(config())
    environ = {
        "KUBECONFIG": os.pathsep.join(["", str(tmp_path / "missing"), str(first), str(second), str(first)])
    }
    cluster = find_cluster(environ=environ)
    assert cluster.endpoint.host == "10.0.0.1"
    assert cluster.namespace == "default"
    assert await cluster.credentials.current() == Credential("from-the-first")


def test_home(tmp_path):
    """Without an option or a variable it is ~/.kube/config."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(config())
    assert find_cluster(environ={"HOME": str(tmp_path)}).endpoint.host == "10.0.0.1"


def test_nothing_at_all(tmp_path):
    """No kubeconfig and no pod: one sentence with the way out."""
    with pytest.raises(NoCluster) as caught:
        find_cluster(environ={"HOME": str(tmp_path)})
    assert str(caught.value) == (
        f"no cluster: no kubeconfig at {tmp_path}/.kube/config, and this is not a pod; use --kubeconfig FILE"
    )


async def test_certificates_by_path_and_inline(tmp_path):
    """Certificates stand in the file or beside it; paths count from the file's folder; inline wins."""
    (tmp_path / "ca.pem").write_bytes(b"CA")
    (tmp_path / "cert.pem").write_bytes(b"CERT")
    (tmp_path / "key.pem").write_bytes(b"KEY")
    by_path = {"client-certificate": "cert.pem", "client-key": str(tmp_path / "key.pem")}
    cluster = found(
        tmp_path,
        config(clusters=cluster_entry(**{"certificate-authority": "ca.pem"}), users=user_entry(**by_path)),
    )
    assert cluster.tls.ca == tmp_path / "ca.pem"
    assert await cluster.credentials.current() == Credential(None, b"CERT", b"KEY")
    (tmp_path / "cert.pem").write_bytes(b"RENEWED")
    assert await cluster.credentials.current() == Credential(None, b"RENEWED", b"KEY")
    inline = {"client-certificate-data": base64.b64encode(b"INLINE").decode(), "client-key-data": "S0VZ\n"}
    cluster = found(tmp_path, config(users=user_entry(**by_path, **inline)))
    assert await cluster.credentials.current() == Credential(None, b"INLINE", b"KEY")


async def test_impersonation(tmp_path):
    """Whom to act as goes into headers."""
    user = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"scope/x": ["view"]}}
    cluster = found(tmp_path, config(users=user_entry(**user)))
    assert cluster.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-scope%2Fx", "view"),
    )
    assert "Impersonate-Group: b\r\n" in Client(cluster)._fixed_headers


async def test_token_file_wins_over_token(tmp_path):
    """A token's file wins over a token beside it, which serves until the file can be read."""
    cluster = found(tmp_path, config(users=user_entry(token="given", tokenFile="token")))
    assert await cluster.credentials.current() == Credential("given")
    (tmp_path / "token").write_text("")  # being written
    assert await cluster.credentials.current() == Credential("given")
    (tmp_path / "token").write_text("from-file")
    assert await cluster.credentials.current() == Credential("from-file")


@pytest.fixture
def service_account(tmp_path):
    """A folder as every pod has it."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, content in {"token": "first\n", "ca.crt": "CA", "namespace": "gpu-webhook"}.items():
        (folder / name).write_text(content)
    return folder


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_in_cluster(service_account):
    """A pod finds its cluster by its service account."""
    cluster = find_cluster(environ=POD, service_account=service_account)
    assert str(cluster.endpoint) == "https://10.96.0.1:443"
    assert cluster.tls.ca == service_account / "ca.crt"
    assert cluster.namespace == "gpu-webhook"
    assert await cluster.credentials.current() == Credential("first")
    ipv6 = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert (
        str(find_cluster(environ=ipv6, service_account=service_account).endpoint) == "https://[fd00::1]:443"
    )


async def test_in_cluster_token_renewal(service_account, monkeypatch):
    """A renewed token is used at once; one that vanished or is half written is not missed; a 401 reads again."""
    clock = FakeClock()
    cluster = in_cluster(POD, service_account, clock)
    token = service_account / "token"
    assert await cluster.credentials.current() == Credential("first")
    token.write_text("second-token")
    assert await cluster.credentials.current() == Credential("second-token")
    stamp = files.signature_of(token)
    monkeypatch.setattr(files, "signature_of", lambda path: stamp)  # a file system whose clock stands still
    token.write_text("third--token")
    assert await cluster.credentials.current() == Credential("second-token")
    await clock.advance(60)
    assert await cluster.credentials.current() == Credential("third--token")
    token.write_text("fourth-token")
    assert await cluster.credentials.renewed(Credential("third--token")) == Credential("fourth-token")
    assert await cluster.credentials.renewed(Credential("fourth-token")) is None
    monkeypatch.undo()
    token.write_text("")
    assert await cluster.credentials.current() == Credential("fourth-token")
    token.unlink()
    assert await cluster.credentials.current() == Credential("fourth-token")


def test_in_cluster_without_token(service_account):
    """Without a service account's token the error says what may be the reason."""
    (service_account / "token").unlink()
    with pytest.raises(NoCluster, match=r"token is missing: is automountServiceAccountToken switched off\?"):
        find_cluster(environ=POD, service_account=service_account)


async def test_bad_token(service_account):
    """A token that could break a header is refused."""
    (service_account / "token").write_text("a\r\nHost: evil")
    cluster = find_cluster(environ=POD, service_account=service_account)
    with pytest.raises(CredentialsFailed, match="service account: token: a token is one word"):
        await cluster.credentials.current()


def test_a_kubeconfig_wins_over_the_pod(tmp_path, service_account):
    """As for kubectl, a pod's own cluster comes last; an empty file counts for nothing."""
    (tmp_path / ".kube").mkdir()
    file = tmp_path / ".kube" / "config"
    file.write_text(config())
    environ = {**POD, "HOME": str(tmp_path)}
    assert find_cluster(environ=environ, service_account=service_account).endpoint.host == "10.0.0.1"
    file.write_text("apiVersion: v1\nkind: Config\nclusters: null\ncurrent-context: ''\n")
    assert find_cluster(environ=environ, service_account=service_account).endpoint.host == "10.96.0.1"


@pytest.mark.parametrize(
    ("server", "no_proxy", "proxied"),
    [
        ("https://api.example.com:6443", "", True),
        ("https://api.example.com:6443", "other.com,example.com", False),
        ("https://example.com:6443", "example.com", False),
        ("https://example.com:6443", ".example.com", True),
        ("https://api.example.com:6443", ".example.com", False),
        ("https://api.example.com:6443", "*.example.com", False),
        ("https://badexample.com:6443", "example.com", True),
        ("https://api.example.com:6443", "api.example.com:6443", False),
        ("https://api.example.com:6443", "api.example.com:443", True),
        ("https://API.example.com.:6443", " Example.COM ", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://11.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://10.1.2.3:6443", "nonsense/99", True),
        ("https://10.1.2.3:6443", "*", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("http://api.example.com:80", "", False),
    ],
)
def test_proxy_from_environment(server, no_proxy, proxied):
    """HTTPS_PROXY and NO_PROXY as Go's net/http reads them."""
    environ = {"HTTPS_PROXY": "proxy.example.com:3128", "no_proxy": no_proxy}
    proxy = Proxy.from_environment(ServerAddress.parse(server, where="test"), environ)
    assert proxy == (Proxy("http", "proxy.example.com", 3128) if proxied else None)


def test_proxy_of_the_cluster_wins(tmp_path):
    """A cluster's own proxy-url goes before the environment, NO_PROXY or not."""
    text = config(clusters=cluster_entry(**{"proxy-url": "http://me:p%40ss@proxy:3128"}))
    cluster = found(tmp_path, text, HTTPS_PROXY="other:1", NO_PROXY="*")
    assert cluster.proxy == Proxy("http", "proxy", 3128, "me:p@ss")
    assert "p@ss" not in repr(cluster.proxy)


def test_http_proxy_for_plain_servers():
    """A server without TLS goes through HTTP_PROXY."""
    endpoint = ServerAddress.parse("http://api.example.com", where="test")
    assert Proxy.from_environment(endpoint, {"http_proxy": "http://p"}) == Proxy("http", "p", 80)


def test_known_contexts(tmp_path, monkeypatch):
    """The contexts of the file that is named, else of those that kubectl would merge; those that are not there do not count."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(config())
    other.write_text(config(contexts=[{"name": name, "context": {}} for name in ("dev", "prod")]))
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path / 'nowhere'}:{other}")
    assert known_contexts() == ["dev", "prod"]
    assert known_contexts(one) == ["dev"]
