"""The result of an audit: from counts to verdict, sentence and metrics."""
