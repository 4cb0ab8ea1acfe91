"""What an audit says: from counts to verdict, sentence and numbers."""
