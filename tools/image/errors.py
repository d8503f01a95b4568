"""What stops an image from being made."""


class ImageError(Exception):
    """One sentence for whoever asked for an image."""
