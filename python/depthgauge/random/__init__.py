"""Random numbers that a counter makes."""
