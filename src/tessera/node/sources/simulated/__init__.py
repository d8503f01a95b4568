"""Simulated GPUs: cards of a product, cut by the layout in the node's annotation, and what the node says about them."""
