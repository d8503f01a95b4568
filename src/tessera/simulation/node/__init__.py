"""Stand-ins for a node: a kubelet as device plugins see it, a container runtime that reads CDI, the node's own object.

No container is started; only programs that a device mounts into one are run. Device plugins are not part of it: they talk to
this kubelet over gRPC, as to a real one.
"""
