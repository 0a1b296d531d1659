"""Transformers with tensor, pipeline and data parallelism: time of an iteration and memory of a device."""
