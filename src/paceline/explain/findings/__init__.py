"""Causes with their evidence, what removing each would save, and the exact change."""
