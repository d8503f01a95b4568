"""One node's change of layout, from check to verified: for `tessera mig apply` and `tessera mig plan --apply`.

`changes` finds the nodes and computes what would change (`planned` for a whole plan), `in_use` names the pods in its way, `rollout` carries
it out node by node. `attempt` brings one node to its layout: `writing` writes to it, `progress` follows it and says whether it shows
the layout. `config_map` has the configurations of NVIDIA's mig-manager, where that cuts the cards.
"""
