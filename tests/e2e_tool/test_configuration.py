"""Configuration files say what they must, in a form that their readers accept."""

import io
import json
import tarfile
import tomllib

import pytest
from e2e.cluster.control_plane import Addresses, ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.folder import Folder
from e2e.cluster.images import tar, write_image
from e2e.cluster.network import Network
from e2e.cluster.node import Node


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, "node-x", Network(7))


def test_containerd_reads_cdi_and_pulls_nothing(node, tmp_path):
    """CDI specifications from the cluster's own folder; the sandbox image is one that the cluster brings."""
    config = tomllib.loads(node.containerd_config(runc=tmp_path / "runc", cni=tmp_path / "cni-bin"))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert config["version"] == 3
    assert (runtime["enable_cdi"], runtime["cdi_spec_dirs"]) == (True, ["/var/run/cdi"])
    assert runtime["cni"] == {"bin_dirs": [str(tmp_path / "cni-bin")], "conf_dir": str(tmp_path / "cni")}
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"] == {"sandbox": "localhost/pause:1"}


def test_networks_do_not_overlap():
    """Two clusters side by side: no address in common."""
    first, second = Network(0), Network(1)
    assert (first.bridge, first.pod_range, first.api_address) == ("tessera0", "198.18.0.0/24", "198.19.0.1")
    assert (second.bridge, second.pod_range, second.api_address) == (
        "tessera1",
        "198.18.1.0/24",
        "198.19.1.1",
    )


def test_pods_leave_by_the_bridge(node):
    """Pods get addresses of the node's range, and their way out is the node."""
    (plugin,) = node.cni_config()["plugins"]
    assert plugin["bridge"] == "tessera7"
    assert plugin["ipam"]["ranges"] == [[{"subnet": "198.18.7.0/24", "gateway": "198.18.7.1"}]]


def test_kubeconfig_can_be_copied(tmp_path):
    """It holds its certificates itself."""
    addresses = Addresses("127.0.0.1", 6443, 1, 2, 3, 4, "10.96.0.0/24")
    plane = ControlPlane(tmp_path, addresses)
    config = json.loads(plane.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert set(config["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


@pytest.mark.parametrize("name", ["", "Big", "under_score", "-x", "x-", "a/b", "..", "x" * 25])
def test_a_bad_name_is_refused(name):
    """A name becomes part of paths, hosts and control groups."""
    with pytest.raises(ClusterError, match="is no name for a cluster"):
        Folder(name)


def test_an_image_is_an_archive_of_one_layer(tmp_path):
    """A manifest that names the configuration and the layer, as `docker save` writes it."""
    layer = tar({"bin/x": b"program"}, links={"bin/y": "x"}, folders=("bin",))
    write_image(tmp_path / "x.tar", "localhost/x:1", layer, command=["/bin/x"])
    with tarfile.open(tmp_path / "x.tar") as archive:
        files = {name: stream.read() for name in archive.getnames() if (stream := archive.extractfile(name))}
    (entry,) = json.loads(files["manifest.json"])
    config = json.loads(files[entry["Config"]])
    assert entry["RepoTags"] == ["localhost/x:1"]
    assert config["config"]["Cmd"] == ["/bin/x"]
    with tarfile.open(fileobj=io.BytesIO(files[entry["Layers"][0]])) as inner:
        assert inner.getnames() == ["bin", "bin/x", "bin/y"]
