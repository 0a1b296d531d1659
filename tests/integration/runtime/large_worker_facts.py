"""Numbers that the tests of large batches and their ranks share; no torch."""

WEIGHTS, BIAS = [[1.0, -2.0], [0.5, 3.0]], [0.25, -0.5]
GRADIENTS = [([[0.1, 0.2], [-0.3, 0.4]], [0.5, -0.1]), ([[0.0, -0.2], [0.3, 0.1]], [0.2, 0.3])]
DIMENSIONS, SIGMA = 400, 2.0
