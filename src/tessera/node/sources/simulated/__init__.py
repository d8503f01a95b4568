"""Simulated GPUs: cards of a product, cut as the node's annotation or a file says, and what the node says about them.

Data goes one way: desired text (`node_link`, or a file) → decided layout (`layout`) → devices (`cards`) → what became of
them → report → the node's labels and annotations (`node_link`). `source` has it all in its hands. Nothing here
concerns real cards or listed devices.
"""
