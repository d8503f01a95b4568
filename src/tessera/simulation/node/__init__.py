"""Stand-ins for a node: a kubelet as device plugins see it, a container runtime that reads CDI, the node's own object.

Nothing is really run but what a container would see of its devices. Device plugins are not part of it: they talk to this
kubelet over gRPC, as to a real one.
"""
