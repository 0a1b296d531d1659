"""Processes on other hosts: agents that an engine starts, and the leashes that hold them."""
