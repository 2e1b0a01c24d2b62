"""Roads of others that the suites can take, run in interpreters of their own."""
