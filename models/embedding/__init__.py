"""What text models do beside writing: vectors of texts, and how well a document answers a query."""
