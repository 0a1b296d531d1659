"""Paceline: a performance laboratory for distributed deep learning, and the training runtime that grows out of it."""

__version__ = "0.1.0"
