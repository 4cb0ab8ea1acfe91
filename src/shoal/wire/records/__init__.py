"""The records of batches: codecs, compression, checksums, old formats."""
