"""A small discrete-event core for what has no recurrence: asynchrony, contention, stragglers, failures."""
