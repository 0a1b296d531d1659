"""Ranks that step together: exactly weighted gradients, exchanged while they are computed."""
