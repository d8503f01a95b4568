"""One node's change of layout, from check to verified: for `tessera mig apply`.

`changes` finds the nodes and computes what would change, `rollout` writes it node by node, `progress` follows a node and says whether it
shows its layout.
"""
