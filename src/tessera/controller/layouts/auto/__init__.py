"""The autopilot: when it looks, what it is told of demand, which nodes it may have, which limits it keeps to, what it remembers, and what it says.

What belongs here: mode Auto. What does not: what is decided (`core/autopilot`), and how that is carried out (`controller/layouts`).
"""
