"""How things run, not what: precision, compiling, processes, versions."""
