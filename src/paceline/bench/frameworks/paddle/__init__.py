"""PaddlePaddle: single and DataParallel."""
