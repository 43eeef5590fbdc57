"""One script for each schema; its revision is the number of the schema, in four digits."""
