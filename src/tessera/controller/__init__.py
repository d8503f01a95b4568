"""What changes a cluster over time: the templates of claims (`claims`), the layouts of nodes (`layouts`), pods that wait although something else is free (`patience`).

`tessera controller` is a process of its own (`process`), of which one leads (`leader`); it runs the reconcilers. A reconciler gets what the
cluster has and returns what is to be done, again and again, whatever it has seen before. Neither kopf nor kr8s carries it: kopf keeps its state in
annotations and finalizers of the objects that it handles, here every GPU pod, and has no Lease; kr8s has neither informers nor leaders. What
they would bring beyond that is in `kube` already.

What belongs here: what would change, how it is written, when it holds, and what is done when it does not. What does not: asking a person, and
printing; progress goes to a function that the caller gives.
"""
