"""A small discrete-event simulator for cases without a recurrence: asynchrony, contention, stragglers, failures."""
