"""Language models on Penstock's public interface."""
