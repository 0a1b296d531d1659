"""Links of a virtual cluster: rate, latency, and their verification."""
