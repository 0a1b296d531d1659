"""`strategy="auto"`: measure, choose a strategy with the model, and choose again when conditions drift."""
