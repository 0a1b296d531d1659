"""Input of a rank: the samples of each step, loaded in the training loop or by prefetching workers."""
