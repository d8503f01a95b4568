"""`tessera mig plan`: the command, the cards it plans for, what it prints, and `--defragment`."""
