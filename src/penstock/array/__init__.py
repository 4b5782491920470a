"""Arrays on a device, and every way in which the host reads and writes them."""
