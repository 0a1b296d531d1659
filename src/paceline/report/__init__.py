"""Presentation: terminal, HTML page, figures, JSON documents, exports. All formatting is here."""
