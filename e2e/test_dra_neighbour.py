"""Our DRA driver beside another project's, on one node."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import dra
from e2e.cluster import ClusterWithNode, Object, program
from e2e.cluster.api import ApiError

OTHER = "gpu.example.com"


@contextmanager
def example_driver(cluster: ClusterWithNode, tmp_path: Path) -> Iterator[None]:
    """dra-example-driver with two devices; it takes sockets and CDI specs to the same folders."""
    folder = cluster.kubelet_dir / "plugins" / OTHER
    folder.mkdir(parents=True, exist_ok=True)
    with (tmp_path / "example-driver.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("dra-example-kubeletplugin"),
                f"--node-name={cluster.node_name}",
                f"--kubeconfig={cluster.kubeconfig}",
                f"--cdi-root={cluster.cdi_dir}",
                f"--kubelet-plugins-directory-path={cluster.kubelet_dir / 'plugins'}",
                f"--kubelet-registrar-directory-path={cluster.kubelet_dir / 'plugins_registry'}",
                "--num-devices=2",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _slices(cluster: ClusterWithNode, driver: str) -> list[Object]:
    found: list[Object] = cluster.api.get(dra.SLICES, fieldSelector=f"spec.driver={driver}")["items"]
    return found


def test_beside_another_driver(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A pod with a claim of both runs; ours starts anew and the kubelet does: the other's devices, files and slices stay its own."""
    cluster, namespace = cluster_with_node, node_namespace
    request = {"name": "other", "exactly": {"deviceClassName": OTHER}}
    selector = {"cel": {"expression": f"device.driver == '{OTHER}'"}}
    try:
        cluster.api.create(dra.CLASSES, {"metadata": {"name": OTHER}, "spec": {"selectors": [selector]}})
    except ApiError as error:
        if error.code != 409:
            raise
    both = [request, {"name": "ours", "exactly": {"deviceClassName": dra.profile_class(cluster, "2g.20gb")}}]
    for name, requests in (("other", [request]), ("both", both)):
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
        cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", body)
    config = dra.simulated(tmp_path, 'layout: "2g.20gb=1"')
    with example_driver(cluster, tmp_path):
        cluster.wait(lambda: _slices(cluster, OTHER) or None, what="the other driver's slices")
        dra.run(cluster, namespace, [dra.pod("theirs", template="other")])
        theirs = {path.name for path in cluster.cdi_dir.iterdir() if not path.name.startswith(dra.DRIVER)}
        assert theirs
        for _ in range(2):  # the second time over what the first left
            with dra.start(cluster, tmp_path, config) as running:
                running.until(lambda: dra.slices(cluster), what="our slices")
                running.wait_for_log("registered with the kubelet")
                dra.run(cluster, namespace, [dra.pod("mixed", template="both")])
                assert dra.seen(cluster, namespace, "mixed") == ["2g.20gb"]
                environment = cluster.kubectl("exec", "mixed", "-n", namespace, "--", "env")
                assert "GPU_DEVICE_" in environment, "the other driver's device is there too"
                cluster.kubectl("delete", "pod", "mixed", "-n", namespace)
                cluster.wait(
                    lambda: not list(cluster.cdi_dir.glob(f"{dra.DRIVER}*")) or None,
                    what="our claim has ended",
                )
        assert theirs <= {path.name for path in cluster.cdi_dir.iterdir()}
        registry = [path.name for path in (cluster.kubelet_dir / "plugins_registry").iterdir()]
        assert [name for name in registry if OTHER in name], "its registration is not ours to remove"
        assert [name for name in registry if dra.DRIVER in name] == []
        assert len(_slices(cluster, OTHER)) == 1
        cluster.kubectl("delete", "pod", "theirs", "-n", namespace)
        dra.remove_pods(cluster, namespace)
