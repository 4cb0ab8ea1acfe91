"""Reports: one self-contained HTML file with the components of the page, and its twins."""
