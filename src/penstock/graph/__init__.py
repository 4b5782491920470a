"""Work that is recorded once and replayed as one command."""
