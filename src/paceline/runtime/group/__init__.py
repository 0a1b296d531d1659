"""A group of ranks that step together: exactly weighted gradients, exchanged during the backward pass."""
