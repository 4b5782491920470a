"""Language models on a device, by the public API of Penstock alone, as a user would write them."""
