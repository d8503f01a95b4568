"""What Kubernetes' dynamic resource allocation (DRA) offers on which node, as the scheduler takes it.

What belongs here: the values of ResourceSlices and DeviceClasses as far as decisions need them (`slices`), which pools a
node can use (`pools`), and how many devices of a class there are (`counting`). What does not: reading the objects and
evaluating a class's CEL expressions, which `protocol.dra` does.
"""
