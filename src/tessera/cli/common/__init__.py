"""What commands share: the options that name a cluster, forms of output, completion, durations, and what a terminal can show."""
