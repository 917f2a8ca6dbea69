"""Storage: the only SQL and the only psycopg of the library."""
