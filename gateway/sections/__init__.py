"""The sections of the settings tree, one file each; `gateway.settings` reads and checks the whole of it."""
