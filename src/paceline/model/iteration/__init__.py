"""One iteration: the max-plus recurrence, what is fused, and the terms of a data-parallel step."""
