"""Where files, Shards and Segments lie: nothing in a Store is ever overwritten with other bytes."""
