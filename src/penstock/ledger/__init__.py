"""Which access must wait for which: hazards and roles. No driver, no I/O."""
