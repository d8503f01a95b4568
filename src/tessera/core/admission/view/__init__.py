"""What decisions read of a cluster: the view (`view`), and the same for the code that follows a cluster and writes to it (`offers`).

In the index behind them each node is one bit of a number: what nodes offer, and what of it a pod can use (`usable`), their labels and
taints (`labels`). Reading objects is in `protocol.kubernetes`.
"""
