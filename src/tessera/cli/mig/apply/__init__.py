"""`tessera mig apply`: the command, and what it prints."""
