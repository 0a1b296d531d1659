"""What processes of a job say to each other: messages, their encoding, and the states that messages lead to."""
