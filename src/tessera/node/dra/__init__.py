"""Dynamic resource allocation: the sources' devices published to the scheduler as ResourceSlices, and claims prepared for the kubelet.

`slice_documents` and `slice_publisher` are what the node offers; `claim_objects`, `preparing`, `prepared_claims`, `claim_cutting` and `upkeep` are what pods have
of it. `kubelet` has the kubelet's
sockets and calls, whose messages become plain values there and go no further. `exclusive` says whether this process may offer the
devices, `process` decides which devices there are and puts it together. Where devices come from does not belong here.
"""
