"""Hypothesis draws the same examples in every run, so that a failure is reproducible."""

from hypothesis import settings

settings.register_profile("paceline", derandomize=True, deadline=None, max_examples=200)
settings.load_profile("paceline")
