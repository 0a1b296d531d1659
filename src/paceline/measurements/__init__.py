"""Results of measurements: runs, steps, spans, failures, and the store that holds them."""
