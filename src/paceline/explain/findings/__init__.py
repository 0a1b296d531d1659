"""Findings: causes with their evidence, gain and change."""
