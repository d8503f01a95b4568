"""What runs on a node: its devices, told to the kubelet and handed to containers.

`sources/` says which devices there are, `cdi` and `state` put them on disk: both are the same for every protocol that the
kubelet speaks. `deviceplugin/` is one of them, v1beta1; a driver for dynamic resource allocation would stand beside it.
`process` puts a node together. What does not belong here: layouts, placements and allocation preferences, which are pure
and live in `core`.
"""
