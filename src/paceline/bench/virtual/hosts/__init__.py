"""Hosts of a virtual cluster: namespaces, the holder process, state on disk, throttled devices."""
