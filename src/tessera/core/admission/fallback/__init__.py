"""Fallback: what a pod gets when the MIG profiles that it asks for are not offered.

What may stand for a profile (`candidates`), the search (`search`), for several profiles what fits together on one node (`together`), what it found or why it found
nothing (`found`), and how it is asked about a pod (`asking`). What the operator, the namespace and the pod allow is in `policy`.
"""
