"""How a pod asks for GPUs, and what its annotations record of it: what fallback replaced, and what a claim may be served with.

What belongs here: the record of a fallback and how it is undone (`record`), the alternatives of a claim (`alternatives`), and what a
pod asks for, whichever way it does (`asking`). Nothing here decides: that is in `core.admission`, which writes these annotations.
"""
