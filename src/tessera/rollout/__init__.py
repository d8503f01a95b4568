"""One node's change of layout, from check to verified: for `tessera mig apply`.

`targets` finds the nodes, `changes` computes what would change, `rollout` writes it node by node, `watch` follows a node, and `progress` says
whether it shows its layout.
"""
