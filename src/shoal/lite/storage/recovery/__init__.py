"""What a broker knows of its logs after a restart: how the last process ended, and losses."""
