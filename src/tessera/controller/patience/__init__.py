"""Pods that wait for longer than their patience, and for whom something else has come free: they are evicted, and the webhook decides again.

`objects` reads the pods that wait, and says which are left alone whatever is free; `jobs` says of which Jobs an eviction costs no retry; `endpoints` whether the
webhook can be called. `plan` says who is evicted (pure). It asks `judge`, which makes the webhook's decision again (`core.admission.moves`), and goes by
`history`, which outlives a process, and `successors`, which says whether the evicted came back as they should. `reconciler` follows the cluster and has
`writes` carry out the plan.
"""
