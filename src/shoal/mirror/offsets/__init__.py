"""Which target offset a source offset became, and what a mirror remembers on its target."""
