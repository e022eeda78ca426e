"""`python -m cofair` is the command line."""

from cofair.cli import main

main()
