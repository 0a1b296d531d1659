"""Which strategy and which split of the batch suit a cluster of unequal devices."""
