"""Dynamic resource allocation in the stand-in control plane: claims are made, allocated, and go with their pods.

`allocating` reads what there is and finds devices for requests; `scheduling` is the scheduler's part, `claims` that of
kube-controller-manager. What does not belong here: preparing devices on a node, and Tessera's own controller, which is the real one.
"""
