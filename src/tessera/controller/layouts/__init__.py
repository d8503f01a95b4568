"""Layouts on nodes: what a change would do, how it is written node by node, and when it holds."""
