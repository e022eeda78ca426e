"""`python -m cofair` is the command line."""

from cofair.cli.main import main

main()
