"""Twenty bad minutes: faults at random while pods and layouts come and go, and promises that are checked throughout.

`schedule` chooses faults, `samples` and `looks` say what does not hold: they are pure. `node` breaks what runs on a real node, `cards`
adds faults of NVML to it, and `fleet` breaks what keeps the layouts of several nodes.
"""
