"""What a cluster has, who holds it and who waits: capacity and pending demand, from a cluster or from files.

For the commands, the page, the doctor and the controller. Nothing here prints.
"""
