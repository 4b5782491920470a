"""Hazards and roles: which access must wait for which. No driver, no I/O."""
