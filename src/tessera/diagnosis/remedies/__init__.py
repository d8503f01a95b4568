"""What would make a pod run, in words for people and as changes for programs: on the nodes as they are, or with another layout.

Nothing here says why a pod waits. What would have admission decide otherwise is admission's part.
"""
