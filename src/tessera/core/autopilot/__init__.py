"""The autopilot: which idle slices are re-cut for what waits. A pure policy, used by the controller.

`values` are what goes in and what comes out. `propose` decides: `wanted` puts what pods want in
order and says what demand is expected, `groups` which cards are alike and how they could be cut, `search` finds the re-cuts that are worth it, `together` what is cut for pods that want several devices, and why the rest gets no room; `propose` keeps large idle places whole. What the autopilot remembers between two looks is a value, too (`Past`).
"""
