"""From spec to measurements: environments, launchers, frameworks, and the one loop over cases."""
