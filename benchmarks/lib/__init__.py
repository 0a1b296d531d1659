"""Workers, jobs and cases that the benchmarks share."""
