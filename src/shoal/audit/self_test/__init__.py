"""The judge judged: anomalies planted at random, and a second judge that shares no code."""
