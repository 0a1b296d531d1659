"""Apache SINGA."""
