"""What runs on a node: its devices, offered through the kubelet and handed to containers.

`sources/` reports which devices there are, `poller` asks it every second, `cdi` and `state` put the devices on disk: all the same for
every protocol that the kubelet speaks. `deviceplugin/` is one protocol (v1beta1), `dra/` the other. What does not belong here: layouts, placements and allocation preferences, which are pure and live in `core`.
"""
