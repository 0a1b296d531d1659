"""A training job from outside: the interpreter of its ranks, and how they are followed."""
