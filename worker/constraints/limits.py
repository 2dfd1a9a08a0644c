"""How much work a grammar may be: to prepare it, and for each token."""

from llguidance import LLParserLimits

from worker.constraints.grammar import Kind

# Of one grammar, on one core. A large schema from the world takes a tenth of it.
TRIAL_CPU_S = 0.6
# What a grammar may take of memory until its first token; each sequence has its own.
TRIAL_MEMORY_BYTES = 256 << 20
# Of the thread that tries it: what is deeper would end a thread of the worker, whose stack is larger.
TRIAL_STACK_BYTES = 1 << 20
# That are taken in a trial, as some grammars are too much only behind their first token.
TRIAL_TOKENS = 8

# Ways to go on from one place. What a client writes freely can be ambiguous: then a token is work with the square of
# this, some 10 ms. A schema needs it for its optional properties, four for each, and is not ambiguous.
MAX_WAYS_FREE = 500
MAX_WAYS = 2_000


def parser_limits(kind: Kind) -> LLParserLimits:
    """Return the limits that llguidance holds by itself, with errors that show nothing of the client's grammar.

    At about 14 units of work of the lexer in a microsecond and 20 items of the parser, a token takes at most some 15
    ms. A state of the lexer takes some 0.5 kB, and each character of a text whose length is bounded some three.
    """
    return LLParserLimits(
        max_items_in_row=MAX_WAYS_FREE if kind == "lark" else MAX_WAYS,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
