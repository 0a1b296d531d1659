"""The one channel of the product: authenticated connections between its processes, and listeners that no caller
can hold up. Standard library and Python 3.9 only, since measured processes and agents import it."""
