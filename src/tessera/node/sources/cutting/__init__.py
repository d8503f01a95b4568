"""Real cards, cut as the node's layout says, or as claims ask for it.

Data goes one way: what NVML offers and has (`library`, behind the port of `port`) and the desired layout → the devices that ought to be
there → what the plugin made of them, and who holds what (`source`) → one card's cut (`card`: journal, steps, put back), each
in a thread of its own (`jobs`). Cards that claims cut are in `on_demand`: what each is to have comes with the call, and the caller
waits for its end. Nothing here knows the kubelet; what the plugin publishes says which devices pods hold.
"""
