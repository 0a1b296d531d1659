"""Group membership: authenticated peers, a leader, and the views of the group."""
