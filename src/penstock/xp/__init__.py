"""The Array API standard on a device: the functions behind `dev.xp` and the operators of arrays."""
