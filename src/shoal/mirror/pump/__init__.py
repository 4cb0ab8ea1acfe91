"""What a mirror's runner keeps track of, so that its cost depends on what moves."""
