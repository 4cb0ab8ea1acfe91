"""PySpark: the session and the audit job. The only package that imports pyspark."""
