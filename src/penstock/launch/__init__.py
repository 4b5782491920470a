"""Kernels, and what one call of a kernel takes, needs and returns."""
