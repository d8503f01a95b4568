"""Stand-ins for the API server and the scheduler: real HTTP, objects in memory.

What belongs here is what clients of a control plane build on: reading and writing objects, lists, watches, patches, admission
webhooks, scheduling, events, and claims for devices. What does not: schemas, permissions, other controllers, and nodes.
"""
