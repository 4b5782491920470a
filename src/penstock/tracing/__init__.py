"""The receipt: what the runtime did, what it cost, and the pages that show it."""
