"""Layouts on nodes, in the order in which a rollout uses them.

`targets` finds the nodes, `changes` computes what would change, `rollout` writes it node by node, `watch` follows a node, and `progress` says
whether it shows its layout.
"""
