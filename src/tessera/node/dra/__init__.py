"""Dynamic resource allocation: what sources say, told to the scheduler as ResourceSlices, and claims prepared for the kubelet.

`offer` names and orders devices, `slices` makes documents of them and says what is to be written, `publisher` writes it.
`claim_objects` reads claims, `prepared` and `cdi_files` are what is on disk of them, `claims` prepares and ends them. `registration`, `service`
and `health` are the kubelet's side, `instances` and `mode` say whether this process is the one to speak, `driver` keeps all
of it going. Where devices come from does not belong here.
"""
