"""What acts on a cluster over time. Today: giving nodes a layout, a few at a time, and seeing that they take it."""
