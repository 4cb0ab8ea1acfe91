"""The data source `shoal`: Kafka topics as Spark tables, read by our own client, no JVM client.

options   what a user asks for, by the option names of Spark's own Kafka connector
places    from those to offsets of partitions, and from ranges to tasks
columns   from record batches to Arrow, column at a time
reading   one range of one partition
source    what Spark calls
"""
