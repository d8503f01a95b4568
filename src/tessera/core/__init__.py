"""Values and decisions.

What belongs here: quantities, MIG profiles and geometry, the little of pods and nodes that decisions need,
fallback, injection, capacity, layouts, device sets; frozen values that are valid because they exist, and pure
functions over them. What does not: I/O, clocks, JSON, logging, third-party packages. A function here can be
understood, tested and trusted from its arguments alone.
"""
