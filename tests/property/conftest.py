"""Hypothesis draws the same examples every time, so that a red test stays red."""

from hypothesis import settings

settings.register_profile("paceline", derandomize=True, deadline=None, max_examples=200)
settings.load_profile("paceline")
