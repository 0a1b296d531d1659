"""JAX: single, and data-parallel over processes."""
