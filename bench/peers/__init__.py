"""The peers' programs: the same work as theirs is done today, each printing one JSON line."""
