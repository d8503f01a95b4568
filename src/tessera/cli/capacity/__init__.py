"""`tessera capacity`: what is there, what is taken, what is left.

`forms` prints a report, `screens` prints it again and again. `inventory` counts.
"""
