"""PySpark: session, audit job, workers as Spark tasks, data source.

The only package that imports pyspark.
"""
