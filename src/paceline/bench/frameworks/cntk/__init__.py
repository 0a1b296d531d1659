"""Microsoft CNTK: 32-bit, 1-bit and block-momentum learners."""
