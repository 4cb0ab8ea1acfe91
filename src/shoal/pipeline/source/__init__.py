"""The data source `shoal`: Kafka topics as Spark tables, read by Shoal's client, not a JVM.

options         parses the options, which have the names of Spark's own Kafka connector
offset_ranges   resolves a query to offsets of partitions, and splits ranges into tasks
filters         turns filters of the plan into limits, with pushFilters=true
columns         converts record batches to Arrow, column by column
reading         reads one range of one partition
source          the classes that Spark calls
"""
