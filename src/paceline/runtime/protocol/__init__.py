"""The protocol of a job: messages, their encoding, and states with their transitions."""
