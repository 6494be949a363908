"""The command `worstclass`: one module for each group of commands; nothing else in the package imports these."""
