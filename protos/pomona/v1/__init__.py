"""Version 1 of the contract: messages and services generated from the .proto files here."""
