"""What Kubernetes' dynamic resource allocation (DRA) offers on which node, as the scheduler takes it.

What belongs here: the values of ResourceSlices and DeviceClasses as far as decisions need them, and where they
are (`slices`), how Tessera's own driver calls its devices (`device_names`), which pools a node can use and how many
devices of a class they have (`pools`). What does not: reading the objects and evaluating a class's CEL expressions, which `protocol.dra` does.
"""
