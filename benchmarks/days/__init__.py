"""Days of demand in simulated time: what a way to admit pods is worth, and whether its laws hold.

What belongs here: demand like that of a production trace (`figures`, `tasks`), cards cut for it (`layouts`), and a cluster whose
clock jumps from event to event (`clock`, `cluster`, `scheduler`). What decides there is the production code, unchanged
(`webhooks`, `replicas`, `patience`). `week` puts it together. A week of 64 cards takes seconds. What does not belong here: bytes, sockets,
and stand-ins that speak Kubernetes' API (`tessera.simulation.control_plane`).
"""
