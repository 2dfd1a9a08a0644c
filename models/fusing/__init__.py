"""A model and an adapter of it made one: a checkpoint's folder whose weights have the adapter in them."""
