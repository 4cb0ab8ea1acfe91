"""The experiments of the demo, and its first part, which runs two of them side by side."""
