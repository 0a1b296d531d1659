"""Keras 3 models in the runtime, on the backends TensorFlow, torch and JAX; `paceline.keras` is the public
interface."""
