"""The only place that formats: terminal, HTML page, figures, JSON documents, exports; computes nothing."""
