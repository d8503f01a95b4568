"""The stories of the demo: what they are, how they are played, and how each must end. Played on a real cluster too."""
