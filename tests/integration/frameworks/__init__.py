"""Every framework, for real."""
