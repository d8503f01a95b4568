"""Patience: which pods that wait are evicted, which are left alone and why, and what they would get. For the controller, which evicts, and for `tessera why`.

`objects` reads a pod that waits, and says whether it is left alone for what it is; `jobs` says of which Jobs an eviction costs no retry; `rules` is what else
leaves a pod alone, and the words for all of it. `history` is what was evicted before; `outlook` says of one pod what will become of it, by the webhook's decision made
again (`core/admission/moves`). What does not belong here: how many are evicted and when, and evicting (`controller/patience`).
"""
