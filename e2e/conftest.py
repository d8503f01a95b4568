"""Clusters for tests: started when the first test asks, stopped with the last, their logs shown when a test fails.

`make e2e` runs three lanes side by side, each in a process of its own with clusters of its own (`_lane`).
Where the machine cannot, a test is skipped with the reason; with `CI=true` in the environment that is a failure.
`TESSERA_E2E_KUBECONFIG` (`make e2e KUBECONFIG=…`) names a cluster to use instead of a control plane of our own.
"""

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from e2e.cluster import (
    Client,
    Cluster,
    ClusterError,
    ClusterWithNode,
    ExistingCluster,
    Folder,
    Unavailable,
    versions,
)
from e2e.cluster.programs import built, programs
from e2e.nvidia.node import prepare

_EXISTING = os.environ.get("TESSERA_E2E_KUBECONFIG", "")
_SKIPPED_IS_FAILED = os.environ.get("CI") == "true" and not _EXISTING
_TEST_SECONDS = 300
_LOGS = Path(__file__).parent.parent / "out" / "e2e-logs"
_CACHED_LANES = "e2e/lanes"
#: The lanes of files, by how their names begin, for tests that use a node or no cluster. All others are in `node`.
_LANES = {
    "test_autopilot": "dra",  # beside the other tests with cards of the stand-in driver
    "test_capacity": "dra",  # these three are here because this lane would be the shortest
    "test_chart": "control-plane",
    "test_cluster": "dra",
    "test_dashboard": "control-plane",
    "test_dra_installed": "node",  # where the image is built
    "test_dra": "dra",
    "test_kueue": "dra",
    "test_moving_world": "dra",
    "test_nvidia": "dra",  # late in its lane: what it needs is built meanwhile
    "test_real_cards": "dra",
}

C = TypeVar("C", bound=Cluster)

_clusters: list[Cluster] = []
_log_sizes = pytest.StashKey[dict[Path, int]]()


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config) -> Iterator[Client]:
    """API server, controllers and scheduler; nodes are objects: `control_plane.add_node(…)`."""
    if _EXISTING:
        with contextlib.closing(ExistingCluster(Path(_EXISTING))) as existing:
            yield existing
    else:
        yield from _started(Cluster, f"t{os.getpid()}", pytestconfig)


@pytest.fixture(scope="session")
def own_control_plane(control_plane: Client) -> Cluster:
    """The same, for tests that stop and start its programs: not with a cluster that was there before."""
    if not isinstance(control_plane, Cluster):
        raise Unavailable("this test restarts the API server, which it does not do to an existing cluster")
    return control_plane


@pytest.fixture(scope="session")
def cluster_with_node(pytestconfig: pytest.Config) -> Iterator[ClusterWithNode]:
    """A second cluster, with a real node: kubelet and containerd."""
    if _EXISTING:
        raise Unavailable("this test needs a node of its own, which an existing cluster does not give")
    yield from _started(ClusterWithNode, f"t{os.getpid()}-node", pytestconfig)


@pytest.fixture(scope="session")
def nvidia_programs(pytestconfig: pytest.Config) -> None:
    """NVIDIA's programs, built, and what they need; a test's own time begins after that."""
    if _EXISTING:
        raise Unavailable("NVIDIA's programs run on a node of the tests' own")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        prepare()


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """The next test finds clusters at work, also after one that stopped an API server."""
    yield
    for cluster in _clusters:
        cluster.settle()


@pytest.fixture
def namespace(control_plane: Client) -> Iterator[str]:
    """A fresh namespace of the control plane."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def node_namespace(cluster_with_node: ClusterWithNode) -> Iterator[str]:
    """A fresh namespace of the cluster with a node."""
    with cluster_with_node.namespace() as name:
        yield name


def _started(kind: type[C], name: str, config: pytest.Config) -> Iterator[C]:
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        kind.prepare()  # may build for minutes, and shows how far it is
    cluster = kind.start(name)
    _clusters.append(cluster)
    try:
        yield cluster
    finally:
        _clusters.remove(cluster)
        cluster.stop()


def pytest_configure() -> None:
    """Make SIGTERM end a test run as ^C does, with everything stopped; and keep the shell's cluster out of the tests."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job has the first one ignored
        signal.signal(number, signal.default_int_handler)
    os.environ.pop("KUBECONFIG", None)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before processes share the work: remove what killed runs left behind, and build what is not built yet."""
    if hasattr(session.config, "workerinput"):
        return  # a process of one lane
    for folder in Folder.all():
        if folder.abandoned:
            folder.remove()
    if session.config.getoption("numprocesses", None) and not _EXISTING:
        try:
            programs((*versions.CONTROL_PLANE, *versions.NODE, *versions.OPTIONAL))
        except Unavailable:
            pass  # the tests that need them say why
        except ClusterError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)
        if any(built(name) is None for name in versions.NVIDIA):
            session.config.add_cleanup(_build_in_background(versions.NVIDIA))


def _build_in_background(names: Sequence[str]) -> Callable[[], None]:
    """Build what few tests need while others run, with the time that they leave; returns what ends it."""
    _LOGS.mkdir(parents=True, exist_ok=True)
    with (_LOGS / "build.log").open("wb") as log:
        build = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "e2e.cluster", "build", f"--with={','.join(names)}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def end() -> None:
        build.terminate()
        build.wait()

    return end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time, and count only their own: the first one may wait for programs to be built."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist says that this process has collected its tests
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the process that distributes the tests which lane each belongs to."""
    if hasattr(session.config, "workerinput"):
        lanes = {item.nodeid: _lane(item) for item in session.items}
        session.config.cache.set(_CACHED_LANES, lanes)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Give each process one lane."""
    return _Lanes(config, log)


class _Lanes(LoadScopeScheduling):  # type: ignore[misc]
    @functools.cached_property
    def _lanes(self) -> dict[str, str]:
        found: dict[str, str] = self.config.cache.get(_CACHED_LANES, {})
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self._lanes[nodeid]


def _lane(item: pytest.Item) -> str:
    """The lane that a test runs in, beside the others."""
    fixtures = getattr(item, "fixturenames", ())
    if "mock_devices" in fixtures:  # the machine has them only once
        return "node"
    if "control_plane" in fixtures and "cluster_with_node" not in fixtures:
        return "control-plane"
    return next((lane for start, lane in _LANES.items() if item.path.name.startswith(start)), "node")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remember how long the logs are when a test begins."""
    item.stash[_log_sizes] = {
        path: size for cluster in _clusters for path, size in cluster.folder.log_sizes().items()
    }
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """Skip what this machine cannot do."""
    return (yield from _skip_unavailable())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip what this machine cannot do."""
    return (yield from _skip_unavailable())


def _skip_unavailable() -> Generator[None]:
    try:
        return (yield)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show and keep the logs of a failed test's clusters; in CI, a skipped test has failed."""
    report = yield
    if report.skipped and _SKIPPED_IS_FAILED and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"skipped, which CI takes for a failure: {reason}"
    if report.failed:
        for cluster in _clusters:
            tails = cluster.folder.log_tails(item.stash[_log_sizes])
            report.sections.append((f"logs of cluster {cluster.folder.name} during this test", tails))
            cluster.folder.keep_logs(_LOGS / cluster.folder.name)
            report.sections.append(("complete logs", str(_LOGS / cluster.folder.name)))
    return report


@pytest.fixture
def mock_devices() -> Iterator[None]:
    """Eight real device nodes and libraries, where the example says they are."""
    folders = [Path("/dev/mock"), Path("/mock/lib")]
    for folder in folders:
        folder.mkdir(parents=True)
    for n in range(8):
        os.mknod(folders[0] / f"device_{n}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folders[1] / f"device_{n}.so").write_text(f"library {n}\n")
    yield
    shutil.rmtree("/dev/mock")
    shutil.rmtree("/mock")
