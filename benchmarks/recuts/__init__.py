"""Days of demand on cards that are re-cut: what slices that follow demand are worth.

What belongs here: cards whose slices have places (`pool`), tasks that wait for exactly the size that they ask for (`play`), who cuts the
cards meanwhile (`autopilot`: the production policy; `nos`), and what these are compared with (`static`: the best layout that stays, found by search;
`bounds`: cutting that costs nothing, and no MIG at all). `outcome` counts. A week of 16 cards takes seconds. What does not belong here: demand
itself, and ways to admit pods (`days`).
"""
