"""One folder per framework: an adapter (case to command) and a worker (runs inside the measured process)."""
