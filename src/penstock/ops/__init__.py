"""Operations on whole arrays: elementwise kernels and reductions."""
