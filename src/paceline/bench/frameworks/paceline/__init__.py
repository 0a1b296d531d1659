"""Paceline's own runtime, measured like any other framework."""
