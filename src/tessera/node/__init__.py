"""The device plugin: a node's devices, told to the kubelet and handed to containers.

What belongs here: the gRPC services that the kubelet talks to, registration and supervision, the folder of CDI
specs, and the sources that devices come from (static, simulated, NVML). What does not: layouts, placements and
allocation preferences, which are pure and live in `core`.
"""
