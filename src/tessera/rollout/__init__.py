"""One node's change of layout, from check to verified: for `tessera mig apply` and `tessera mig plan --apply`.

`changes` finds the nodes and computes what would change (`planned` for a whole plan), `in_use` names the pods in its way, `rollout` carries
it out node by node: `alone` brings one node to its layout by the steps of `step`, which `carrying` carries out; `values` are what goes in and out. `progress` follows a node and says whether it shows the layout, `conflicts` says when a node that
changes all the time is tried again, `writing` writes where nobody waits. `config_map` has the configurations of NVIDIA's mig-manager, where that cuts the cards.
"""
