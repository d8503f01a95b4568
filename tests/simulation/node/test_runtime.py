"""What a container has of its devices."""

import json

import pytest

from tessera.protocol.kubelet import v1beta1_pb2 as v1beta1
from tessera.simulation.kubelet import AdmissionFailed
from tessera.simulation.machine import start_container


def grant(*names, **envs):
    return v1beta1.ContainerAllocateResponse(
        envs=envs, cdi_devices=[v1beta1.CDIDevice(name=n) for n in names]
    )


def spec(folder, kind, **devices):
    document = {"kind": kind, "devices": [{"name": n, "containerEdits": e} for n, e in devices.items()]}
    (folder / f"{kind.replace('/', '-')}.json").write_text(json.dumps(document))


async def test_names_become_devices(tmp_path):
    """CDI names are looked up in the spec files; edits add up, shared ones once; a mounted program runs there."""
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "$A $B $1"\n')
    tool.chmod(0o755)
    mount = {"containerPath": "/usr/bin/tool", "hostPath": str(tool)}
    spec(
        tmp_path,
        "v.com/gpu",
        a={"env": ["A=1"], "mounts": [mount]},
        b={"deviceNodes": [{"path": "/dev/b"}], "mounts": [mount]},
    )
    container = start_container([grant("v.com/gpu=a", B="2"), grant("v.com/gpu=b")], tmp_path)
    assert container.env == {"A": "1", "B": "2"}
    assert (container.device_nodes, container.mounts) == (["/dev/b"], {"/usr/bin/tool": str(tool)})
    assert await container.run("/usr/bin/tool", "x") == "1 2 x\n"


def test_a_name_that_no_spec_describes(tmp_path):
    """A runtime cannot start such a container."""
    spec(tmp_path, "v.com/gpu", a={})
    with pytest.raises(AdmissionFailed, match=r"unresolvable CDI devices v\.com/gpu=c"):
        start_container([grant("v.com/gpu=c")], tmp_path)
