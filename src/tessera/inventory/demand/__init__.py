"""What was asked of a cluster and is not there, beside what its pods wait for; and what the autopilot is told of it.

What belongs here: reading what was asked for and rejected, and putting wants and cards together. What does not: how cards are cut for it
(`core/planning`, `core/autopilot`).
"""
