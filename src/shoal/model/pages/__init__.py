"""The data behind pages and reports: of a run (`run`), of one message (`life`)."""
