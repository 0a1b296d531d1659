"""Supervision of a training job: the interpreter of its ranks, their output and restarts."""
