"""Dynamic resource allocation: the sources' devices published to the scheduler as ResourceSlices, and claims prepared for the kubelet.

`slices/` is what the node offers, `claims/` what pods have of it. `driver` decides which devices there are, `kubelet` has the kubelet's
sockets and calls, whose messages become plain values there and go no further. `exclusive` says whether this process may offer the
devices, `process` puts it together. Where devices come from does not belong here.
"""
