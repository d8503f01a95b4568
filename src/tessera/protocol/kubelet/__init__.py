"""The kubelet's gRPC protocols: device plugins (v1beta1) and PodResources (v1).

What belongs here: the wire contract, the messages generated from it, and `messages`, which turns them into core
values and back. What does not: sockets, servers, and any decision. Generated types go no further than the gRPC edge.
"""
