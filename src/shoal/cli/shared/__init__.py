"""Code that several commands use: consoles, options, printing of verdicts."""
