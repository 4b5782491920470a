"""Suballocation of device memory, and the layout of arrays in it."""
