"""The kubelet's gRPC protocols: device plugins (v1beta1), DRA drivers (v1), registration, health, PodResources (v1).

What belongs here: the wire contract, the messages generated from it, and `messages` and `dra_messages`, which turn
them into plain values and back; and the kubelet's `checkpoint`. What does not: sockets, servers, and any decision.
Generated types go no further than the gRPC edge.
"""
