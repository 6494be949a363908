"""`python -m worstclass` is the command."""

from worstclass.cli import main

main()
