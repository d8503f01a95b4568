"""Stand-ins for a node: a kubelet as device plugins see it, a container runtime that reads CDI."""
