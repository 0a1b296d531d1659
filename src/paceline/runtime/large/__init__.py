"""Training with large batches: `Settings.large_batch()` puts it together, from what the rate was tuned for."""
