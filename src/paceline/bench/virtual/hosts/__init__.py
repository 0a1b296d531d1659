"""Hosts of a virtual cluster: namespaces, the process that holds them, their state on disk, throttled devices."""
