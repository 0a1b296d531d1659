"""User scripts: any training command."""
