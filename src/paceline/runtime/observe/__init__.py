"""Metrics of a running training: steps, shares, waiting, staleness and membership."""
