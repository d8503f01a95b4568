"""What we claim about speed, measured beside peers in the same run; and what Tessera is worth in simulated days.

What belongs here: a module for each run, the clusters that runs are measured with (`corpus`), and days of demand in simulated
time (`days`, `recuts`). What does not belong here: anything that a command of Tessera uses.
"""
