"""A training job from outside: the interpreter of its ranks, and the watch over them."""
