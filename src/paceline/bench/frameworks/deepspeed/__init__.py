"""DeepSpeed: ZeRO stages 0 to 3."""
