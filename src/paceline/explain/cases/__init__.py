"""What one case shows: its evidence, its breakdown, its gradient exchange, its stragglers, one step of it."""
