"""PyTorch: single process, DistributedDataParallel over Gloo and NCCL."""
