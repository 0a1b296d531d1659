"""Records of other tools that are no traces: flight recorder dumps, nccl-tests, training logs, operations of a job."""
