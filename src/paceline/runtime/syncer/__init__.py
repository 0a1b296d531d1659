"""The syncer between groups: it applies their progress, also if it is stale, and returns the common parameters."""
