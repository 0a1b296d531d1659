"""MPI itself, without a framework: only its collectives are measured."""
