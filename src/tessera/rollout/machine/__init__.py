"""One node's rollout, with a cordon or without, restarted at any point: for `tessera mig apply` and for the controller.

`step` is pure: from a node as it is to what is to be done next. All that must survive a restart stands on the node, in an annotation; every
write is one patch with the node's version, so that whoever acts on an old state does nothing. `carrying` reads nodes and carries out the steps.
"""
