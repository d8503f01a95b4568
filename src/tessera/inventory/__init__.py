"""What a cluster has, which pods hold it and which wait, from an API server or from files with objects.

What belongs here: reading nodes and pods into an `Inventory`, keeping one right, and what is derived from it (a report, the layouts of nodes,
pending demand, `wants` of the autopilot, `rejected_workloads`). For the commands, the dashboard, the doctor and the controller. What does not: anything that prints, and anything that changes a cluster.
"""
