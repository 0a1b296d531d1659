"""Watching of an unchanged training: recording inside its processes, and conversion of the records to a run."""
