"""The channel: authenticated connections between processes of Paceline, and listeners that no caller can block.
Standard library and Python 3.9 only, since measured processes and agents import it."""
