"""Pods that wait for longer than their patience, and for whom something else has come free: they are evicted, and the webhook decides again.

Who is left alone and what was evicted before are in `diagnosis/patience`, which `tessera why` asks, too. Here `plan` says who is evicted now. It asks `judge`, which
makes the webhook's decision again (`core.admission.moves`), and goes by `successors`, which says whether the evicted came back as they should; `reconciler` follows the cluster,
says whether the webhook can be called, and carries out the plan.
"""
