"""What a rank computes on: samples of each step, loaded in the loop or by prefetching workers."""
