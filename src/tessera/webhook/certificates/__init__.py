"""The webhook's certificates: made, kept in a Secret, rotated by every replica for itself, or read from files."""
