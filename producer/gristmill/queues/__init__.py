"""At-least-once channels of Shard pointers and Bells, behind one protocol."""
