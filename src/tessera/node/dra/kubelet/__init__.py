"""The kubelet's side of the driver: its sockets and registration, its calls about claims, and the stream of health.

Messages are turned into plain values here and go no further; what is decided about claims is decided in `claims/`.
"""
