"""What a cluster will do with a network: predictions, and plans made from them."""
