"""Patience: which pods that wait are evicted, which are left alone and why, and what they would get.

For the controller, which evicts, and for `tessera why`. `pending_pods` reads a pod that waits, says why it is left alone,
and what will become of it, by the webhook's decision made again (`core/admission/moves`). `history` is what was evicted
before. What does not belong here: how many are evicted and when, and evicting (`controller/patience`).
"""
