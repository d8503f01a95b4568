"""MIG layouts as documents, and what Node objects say about their GPUs.

`documents` reads run.ai's annotation, mig-parted's file and plain counts (`entries`), and writes one format as another.
`nodes` has the labels and annotations of a node. Which layouts fit on a card is decided in `core.mig`.
"""
