"""`python -m tessera` is the command line."""

from tessera.cli import main

main()
