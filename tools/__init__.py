"""Tools for those who work on Penstock; none of them is in the wheel."""
