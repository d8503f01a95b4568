"""What we claim about speed, measured beside peers in the same run."""
