"""Devices that a node hands to containers: sets of them, which to prefer, how they come and go, and how capacity is counted.

Where devices come from is in `node.sources`.
"""
