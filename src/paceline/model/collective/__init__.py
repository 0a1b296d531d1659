"""Collectives: what each algorithm costs on hosts and links, and what a measured sweep says."""
