"""`tessera capacity`: what is there, what is taken, what is left.

`forms` prints a report, `command` prints it once, or again and again. `inventory` counts.
"""
