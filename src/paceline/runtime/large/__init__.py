"""Training with large batches: how large is useful, and how rates follow."""
