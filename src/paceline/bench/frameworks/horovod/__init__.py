"""Horovod on PyTorch, TensorFlow and MXNet, over Gloo and MPI."""
