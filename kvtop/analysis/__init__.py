"""What runs measured, and how they compare: figures of one run, statistics over several, gates. Nothing here prints."""
