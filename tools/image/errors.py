"""What stops an image from being made."""


class ImageError(Exception):
    """One sentence for the person or program that asked for an image."""
