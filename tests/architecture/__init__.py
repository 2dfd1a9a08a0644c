"""Rules of the tree that no single module can hold."""
