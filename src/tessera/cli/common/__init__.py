"""What commands share: the options that name a cluster, completion, durations, the terminal, progress, ending in good order."""
