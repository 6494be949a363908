"""`python -m worstclass` is the command."""

from worstclass.cli.main import main

main()
