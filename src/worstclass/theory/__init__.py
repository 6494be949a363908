"""The paper's theorems, and their certificates for a run."""
