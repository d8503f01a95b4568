"""A Kubernetes cluster in this process, for the demo and for quick tests.

What belongs here: small stand-ins for the API server and the scheduler (`control_plane`), for the kubelet and the container
runtime (`kubelet`, `machine`, `node_drivers`), and the stories that are played on them (`stories`). `cluster` puts the stand-ins together, with device plugins
and DRA drivers; `embedded` runs the webhook and the controller beside them. These four are the production code unchanged. What does not
belong here: anything that Tessera does on a real cluster, and how a story is shown to a person.
"""
