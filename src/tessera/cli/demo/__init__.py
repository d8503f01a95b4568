"""`tessera demo`: the stories of `simulation.stories`, played at the terminal or shown on the dashboard.

What belongs here: options, pace, and the words for each scene. What happens in a story, and whether it ended as expected, is decided there.
"""
