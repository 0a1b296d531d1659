"""What happened: runs, steps, spans, failures; data only."""
