"""Chainer with ChainerMN."""
