"""Apache Kafka as a system under test: jars, files, JVMs."""
