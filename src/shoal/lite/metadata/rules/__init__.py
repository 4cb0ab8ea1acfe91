"""The rules of the active controller, as a pure state machine, by subject."""
