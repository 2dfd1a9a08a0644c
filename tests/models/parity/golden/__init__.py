"""What another implementation computed, stored, and the script that stored it."""
