"""What a training does while it runs: steps, shares, waiting, staleness and membership, for people and for monitors."""
