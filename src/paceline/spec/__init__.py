"""What is asked: frozen data, no framework, no clock."""
