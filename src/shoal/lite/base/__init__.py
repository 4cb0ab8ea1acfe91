"""What all parts of Kafka Lite use: settings, specs, connections between nodes."""
