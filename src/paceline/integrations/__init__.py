"""Paceline inside other people's training loops: `paceline.watch`, and callbacks of trainers over it."""
