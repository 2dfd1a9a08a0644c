"""What llguidance's words for a failure become."""

from collections.abc import Callable

import pytest

from worker.constraints.complaints import refusal_of
from worker.constraints.refusal import Reason, Refused, invalid, too_complex, unsupported
from worker.errors import ConstraintInvalid, ConstraintTooComplex, FieldError, UnsupportedOption


@pytest.mark.parametrize(
    ("message", "reason", "problem"),
    [
        ("at 3(8): unknown name: \"x\"\n   3 | secret", Reason.INVALID, "line 3: a name without a rule"),
        ("12(1): Expected token ')'", Reason.INVALID, "line 12: it is no lark grammar that can be read"),
        ("parser error: Too many items (limit 50000; mask)", Reason.TOO_COMPLEX, "it has too many ways to go on"),
        ("lexer error: too many", Reason.TOO_COMPLEX, "its regular expressions take too much work"),
        ("panic: assertion failed: x", Reason.TOO_COMPLEX, "it is more than the grammar library can hold"),
        ("backreferences are not supported", Reason.UNSUPPORTED, "back-references in a regular expression"),
        ("something new", Reason.INVALID, "it is no lark grammar that can be read"),
    ],
)  # fmt: skip
def test_words_are_translated_and_not_repeated(message: str, reason: Reason, problem: str) -> None:
    refused = refusal_of(message, "lark")

    assert (refused.reason, refused.problem) == (reason, problem)


@pytest.mark.parametrize(
    ("make", "error"),
    [(invalid, ConstraintInvalid), (too_complex, ConstraintTooComplex), (unsupported, UnsupportedOption)],
)
def test_a_refusal_becomes_the_error_of_its_reason(make: Callable[[str], Refused], error: type[FieldError]) -> None:
    refused = make("words").at("spec.x")

    assert type(refused) is error
    assert (refused.field, refused.description) == ("spec.x", "words")
