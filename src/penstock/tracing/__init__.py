"""The receipt: what was done, what it cost, and the pages that show it."""
