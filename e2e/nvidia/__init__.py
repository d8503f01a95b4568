"""NVIDIA's driver and programs, without NVIDIA's cards.

`library/` stands in for the driver's library (`libnvidia-ml.so.1`), over a state file whose layout `state` has; `driver` builds it,
makes the file and changes it while programs run. `machine` has what else programs look for on a machine with cards, `node` the
programs of NVIDIA's operator on a cluster's node.

    driver = Driver(tmp_path / "driver", "H200", cards=2)
    driver.cut(0, "2g.35gb", "2g.35gb", "3g.71gb")
    subprocess.run([...], env=driver.environment)
    driver.fail("nvmlDeviceCreateGpuInstance*", NVML.INSUFFICIENT_RESOURCES, nth=3)
"""

from e2e.nvidia.driver import NVML, Call, Driver, Slice, build

__all__ = ["NVML", "Call", "Driver", "Slice", "build"]
