"""What of the lab is pure: python3 -m unittest discover -s lab/tests -t ."""
