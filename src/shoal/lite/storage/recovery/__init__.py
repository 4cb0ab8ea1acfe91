"""What a log and its broker know after a restart: how the last process ended, what was lost."""
