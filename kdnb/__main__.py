"""`python -m kdnb` is the same as `kdnb`."""

from kdnb.cli import main

main()
