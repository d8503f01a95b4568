"""Dynamic resource allocation in the stand-in control plane: claims are made, allocated, and go with their pods.

`devices` reads what there is, with the code that the webhook reads it with; `allocating` finds devices for requests (pure);
`scheduling` is the scheduler's part, `claim_controller` that of kube-controller-manager. What does not belong here: preparing
devices on a node, and Tessera's own controller, which is the real one.
"""
