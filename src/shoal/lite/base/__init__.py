"""What every part of Kafka Lite uses: settings, specs, connections between nodes."""
