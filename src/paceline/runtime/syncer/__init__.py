"""What sits between groups: it takes their progress, however late, and gives back the common parameters."""
