"""What several commands share: consoles, options, the verdict on the terminal."""
