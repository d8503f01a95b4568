"""The kubelet's device plugin protocol, v1beta1: what sources say, told to the kubelet and handed to containers."""
