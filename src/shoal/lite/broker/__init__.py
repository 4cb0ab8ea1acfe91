"""What a broker does with requests, above its replicas and coordinators."""
