"""Keras 3 on TensorFlow, PyTorch and JAX."""
