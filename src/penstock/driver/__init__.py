"""Drivers: the thin layer that talks to a GPU. `protocol` says what one must provide."""
