"""A user's own training command."""
