"""Is a job healthy? Looks at its rows, tables, files and machine, changes nothing, and starts no Spark (K4)."""
