"""`strategy="auto"`: measure, ask the model, choose, say why, and choose again when conditions drift."""
