"""What llguidance's words for a failure mean to a client; the words themselves may show what was written, and stay."""

import re

from worker.constraints.grammar import Kind
from worker.constraints.refusal import Refused, invalid, too_complex, unsupported

# In this order, as the first may appear in the words of others.
_MEANINGS = (
    ("oneOf constraints", unsupported, "`oneOf` is not enforced where two alternatives may fit one value"),
    ("min/maxProperties only", unsupported, "`minProperties` and `maxProperties` beside optional `properties`"),
    ("circular references with sibling", unsupported, "a `$ref` that leads back to itself, with keywords beside it"),
    ("Unimplemented keys", unsupported, "a keyword that is not enforced"),
    ("are not disjoint", unsupported, "`patternProperties` that one name may match twice"),
    ("look-around", unsupported, "look-around or a word boundary in a regular expression"),
    ("lookarounds", unsupported, "look-around or a word boundary in a regular expression"),
    ("backreferences", unsupported, "back-references in a regular expression"),
    ("Unsatisfiable schema", invalid, "no JSON value fits the schema"),
    ("panic:", too_complex, "it is more than the grammar library can hold"),
    ("recursion limit", too_complex, "it is too deep"),
    ("nested", too_complex, "it is too deep"),
    ("stack level", too_complex, "it is too deep"),
    ("ParserTooComplex", too_complex, "it has too many ways to go on"),
    ("Current row has", too_complex, "it has too many ways to go on"),
    ("Too many items", too_complex, "it has too many ways to go on"),
    ("schema too large", too_complex, "the schema has too many parts, or too many combinations of them"),
    ("too big", too_complex, "it has too many parts"),
    ("lexer error: ", too_complex, "its regular expressions take too much work"),
    ("too many", too_complex, "its regular expressions take too much work"),
    ("too large", too_complex, "it has a number that is too large"),
    ("exceeds", too_complex, "it has a number that is too large"),
    ("fuel", too_complex, "its regular expressions take too much work"),
    ("LexerTooComplex", too_complex, "its regular expressions take too much work"),
    ("precomputation", too_complex, "its regular expressions take too much work"),
    ("Unable to determine", too_complex, "a pattern together with other demands on the same text"),
    ("can't determine", too_complex, "too complex `patternProperties`"),
    ("limit", too_complex, "it is over a limit of the grammar library"),
    ("invalid regex", invalid, "a regular expression that cannot be read"),
    ("regex parse error", invalid, "a regular expression that cannot be read"),
    ("Regex is empty", invalid, "no text matches a regular expression"),
    ("no start rule", invalid, "there is no rule named start"),
    ("unknown name", invalid, "a name without a rule"),
    ("NoExtension", invalid, "no text fits it"),
)
_UNREAD: dict[Kind, str] = {
    "json_schema": "it is no schema that can be enforced",
    "json_object": "it is no schema that can be enforced",
    "regex": "it is no regular expression that can be read",
    "lark": "it is no lark grammar that can be read",
    "choices": "the choices cannot be read",
}
_PLACE = re.compile(r"^(?:at )?([0-9]+)\([0-9]+\): ")


def refusal_of(message: str, kind: Kind) -> Refused:
    """Return the refusal that a failure of llguidance means.

    Args:
        message: its words.
        kind: of the constraint that it failed on.
    """
    place = _PLACE.match(message) if kind == "lark" else None
    where = f"line {place[1]}: " if place else ""
    for words, refuse, problem in _MEANINGS:
        if words in message:
            return refuse(where + problem)
    return invalid(where + _UNREAD[kind])
