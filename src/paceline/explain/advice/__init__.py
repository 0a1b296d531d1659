"""Advice: rules that turn evidence into findings, each with a gain, a change and a way to confirm it."""
