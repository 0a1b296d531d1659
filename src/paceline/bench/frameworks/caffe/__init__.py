"""Caffe, and Caffe-MPI's scheme driven on it."""
