"""Emulated devices: layer times, the device clock, and the check whether the machine kept up."""
