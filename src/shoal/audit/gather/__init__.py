"""Adds up the answers of many tasks in tasks, so that the driver receives one."""
