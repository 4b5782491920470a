"""Kernel code: GLSL to SPIR-V, and what a kernel's interface is."""
