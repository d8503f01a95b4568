"""Dynamic resource allocation: what sources say, told to the scheduler as ResourceSlices, and claims prepared for the kubelet.

`slices/` is what the node offers, `claims/` what pods have of it, `kubelet/` how the kubelet asks. `instances` and `mode` say whether this
process is the one to speak, `driver` decides which devices there are, `process` puts it together. Where devices come from does not
belong here.
"""
