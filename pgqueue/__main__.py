"""`python -m pgqueue` is `pgqueue`."""

from pgqueue.cli import main

main()
