"""TensorFlow: single, MultiWorkerMirroredStrategy, ParameterServerStrategy."""
