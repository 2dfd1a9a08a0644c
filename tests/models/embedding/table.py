"""What is compared with transformers: texts, a query with documents, and an instruction."""

from tests.support.tiny_embedders import QUERY_PROMPT

TEXTS = (
    "the cat sat on the mat",
    "a",
    "in another land and then in the other: naïve café, 日本語, and an end",
    "the " * 40 + "end",
)
QUERIES = tuple(QUERY_PROMPT + text for text in TEXTS[:2])
QUERY = "where did the cat sit?"
DOCUMENTS = ("the cat sat on the mat", "no", "then another thing: " * 12)
INSTRUCTION = "Find what the animal did"
