"""From throughputs at few device counts to larger ones: names, points, the physical curve, its prior, the fit."""
