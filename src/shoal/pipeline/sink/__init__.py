"""The sink of the data source `shoal`: Spark rows to Kafka topics, by Shoal's client, not a JVM.

options    parses the options, which have the names of Spark's own Kafka connector
rows       converts Arrow rows to record batches of partitions, column by column
writing    writes the rows of one task
decisions  the durable decision of an atomic write, and how a later start completes it
writer     the classes that Spark calls
"""
