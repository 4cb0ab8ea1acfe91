"""Processes under test: started so that they end with their owner, and measured."""
