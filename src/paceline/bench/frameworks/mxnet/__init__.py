"""Apache MXNet: Gluon with each of its key-value stores."""
