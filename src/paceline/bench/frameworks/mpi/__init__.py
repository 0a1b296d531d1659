"""MPI without a framework, for sweeps of its collectives."""
