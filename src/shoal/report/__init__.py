"""Reports: one self-contained HTML page made from a result, with SVG pictures."""
