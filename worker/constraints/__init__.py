"""What a client may demand of the text: schemas, regular expressions, grammars, choices; enforced by llguidance."""
