"""Measurement of studies: environments, sites, frameworks, and the campaign loop."""
