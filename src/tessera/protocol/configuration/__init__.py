"""Configuration files: what each field may be, told once; the webhook's file and the device plugin's file, read into values."""
