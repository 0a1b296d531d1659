"""The physics, in one place: roofline, memory, collectives, overlap, buckets, split of a batch."""
