"""Watching a training that runs as it is: recording inside its processes, and what becomes of the records."""
