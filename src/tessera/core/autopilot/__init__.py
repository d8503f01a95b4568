"""The autopilot: which idle slices are re-cut for what waits. A pure policy, used by the controller and by the simulation.

`values` are what goes in and what comes out. `propose` decides: `wanted` puts what pods want in order, `forecast` says what demand is expected, `options` how
a card could be cut, `groups` which cards are alike, `search` finds the re-cuts that are worth it, `refusals` says why the rest gets no room, `places` keeps large idle places whole. What the autopilot remembers between two looks is a value, too (`Past`).
"""
