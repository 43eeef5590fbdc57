"""What decides: batches, Shards, which Segments count, files. SQL, by SQLAlchemy Core."""
