"""The HTTP API: who may, what there is, how far it is. It tokenises nothing, and never waits."""
