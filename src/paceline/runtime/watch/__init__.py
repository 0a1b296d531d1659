"""`paceline watch`: records an unchanged training inside its processes, and converts the records to a run."""
