"""Streams of work, what they wait for, and when they are submitted."""
