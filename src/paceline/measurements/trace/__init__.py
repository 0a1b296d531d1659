"""Traces of other tools as spans and back: Chrome/Perfetto, PyTorch profiler (Kineto), Horovod timeline, Chakra."""
