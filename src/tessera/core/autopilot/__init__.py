"""The autopilot: which idle slices are cut anew for what waits. A pure policy, used by the controller and by the simulation.

`values` are what goes in and what comes out, `propose` decides. What the autopilot remembers between two looks is a value, too (`Past`).
"""
