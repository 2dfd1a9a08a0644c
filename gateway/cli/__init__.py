"""The command line: one file for a verb or a family of verbs."""
