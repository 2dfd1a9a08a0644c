"""How checkpoints write calls of tools: reading, requiring and repeating them, one file a dialect."""
