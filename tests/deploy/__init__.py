"""The files in `deploy/`, each read or run by what it is for, as far as it is installed here."""
