"""Device memory in pieces, and how arrays lie in it."""
