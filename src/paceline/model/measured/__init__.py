"""Extrapolation from throughputs at few device counts: names, points, the physical curve, its prior, the fit."""
