"""Analysis of one case: evidence, breakdown, gradient exchange, stragglers, timeline of one step."""
