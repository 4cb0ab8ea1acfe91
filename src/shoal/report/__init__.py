"""Reports: one self-contained HTML page made from a result, with pictures drawn as SVG."""
