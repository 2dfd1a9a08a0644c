"""The services that the gateway answers itself, one file each."""
