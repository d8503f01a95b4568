"""`tessera demo`: the stories of `simulation.stories`, told at the terminal or shown on a page.

What belongs here: options, pace, and the words for each scene. What happens in a story, and whether it ended as told, is decided there.
"""
