"""What the autopilot is told of demand, which nodes it may have, which limits it keeps to, what it remembers, one look, and what it says.

What belongs here: values and rules of mode Auto, and the follower of demand. What does not: what is decided (`core/autopilot`), and how that is carried out
(`controller/layouts`).
"""
