"""Training with large batches: configured by `Settings.large_batch()`."""
