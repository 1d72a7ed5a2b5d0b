"""`python -m bisnn`, and `torchrun -m bisnn`."""

from bisnn.cli import main

main()
