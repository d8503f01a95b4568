"""What was asked of a cluster and is not there, beside what its pods wait for.

What belongs here: reading what was asked for and rejected. What does not: how cards are cut for it (`core/planning`).
"""
