"""Emulated devices: how long each layer takes, the clock that takes that long, and whether the machine kept up."""
