"""What leads a request is prepared from its prompt, its tools and its constraint, with the model's own tokens."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pomona.v1 import generation_pb2 as pb
from tokenizers import AddedToken

from models.checkpoint.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import byte_level_tokenizer, sentencepiece_tokenizer
from worker.abilities import Abilities, abilities_of
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.tokens import constrained_tokens
from worker.dialects.call import Tool
from worker.errors import ConstraintInvalid, DeadlineExceeded, InvalidField, UnsupportedOption
from worker.guide import Guide
from worker.prompting import Tokenized
from worker.reasoning import Start
from worker.sequence import Constraint
from worker.steerer import Lead, Steerer
from worker.templates import Rendering
from worker.tools import Choice, ToolUse
from worker.validation import Generation

from .specs import MODEL, base, read, read_generation

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = "{{ tools }}<tool_call>{{ message.tool_calls }}<think></think>"
ABLE = abilities_of(TEMPLATE)
TOOLS = (Tool("f", "", {"type": "object", "properties": {"a": {"enum": ["<[3]>"]}}, "required": ["a"]}),)


def tokenizer_of(kind: Callable[[], Any], marks: tuple[str, ...] = MARKS) -> Tokenizer:
    raw = kind()
    raw.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return Tokenizer(raw, file="tokenizer.json", eos_token="<|end|>")


TOKENIZER = tokenizer_of(byte_level_tokenizer)
PLAIN = tokenizer_of(byte_level_tokenizer, ())
END = TOKENIZER.encode("<|end|>", add_special_tokens=False)[0]


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Steerer]]:
    made: list[Steerer] = []

    def steerer(abilities: Abilities = ABLE, tokenizer: Tokenizer = TOKENIZER) -> Steerer:
        size = tokenizer.vocab_size
        made.append(
            Steerer(abilities, tokenizer, lambda: GrammarCompiler(constrained_tokens(tokenizer, size, ())), size)
        )
        return made[-1]

    yield steerer
    for each in made:
        await each.close()


def asking(tools: ToolUse | None = None, **spec: Any) -> Generation:
    message = base(pb.GenerateRequest, spec=pb.GenerationSpec(**spec))
    generation = read_generation(message.SerializeToString(), pb.GenerateRequest, replace(MODEL, abilities=ABLE))
    return replace(generation, steering=replace(generation.steering, tools=tools)) if tools else generation


def prompt(tail: str, tokenizer: Tokenizer = TOKENIZER) -> Tokenized:
    return Tokenized(tuple(tokenizer.encode(tail, add_special_tokens=False)), Rendering(f"user: <think>\n{tail}", tail))


BEFORE, INSIDE, BEHIND = prompt("A:"), prompt("A:<think>\n"), prompt("A:<think>\n\n</think>\n\n")


def written(constraint: Constraint, text: str, tokenizer: Tokenizer = TOKENIZER) -> bool:
    """Say whether a constraint lets the tokens of a text come and is then at an end."""
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        mask = constraint.mask()
        if mask is not None and not mask[token_id // 32] >> np.uint32(token_id % 32) & 1:
            return False
        constraint.advance(token_id)
    mask = constraint.mask()
    return constraint.is_complete or bool(mask is not None and mask[END // 32] >> np.uint32(END % 32) & 1)


def start(lead: Lead) -> Constraint:
    assert lead.make_constraint is not None
    return lead.make_constraint()


async def test_a_plain_request_is_only_read_apart(make: Callable[..., Steerer]):
    steerer = make()
    for tokenized, expected in [(BEFORE, Start.BEFORE), (INSIDE, Start.INSIDE), (BEHIND, Start.BEHIND)]:
        lead = await steerer.lead(asking(), tokenized, None)
        assert (lead.form.marks, lead.form.start, lead.make_constraint) == (ABLE.marks, expected, None)
        assert (lead.form.is_content_verbatim, lead.form.make_parser) == (False, None)
        assert set(lead.form.shown.values()) == {b"<think>", b"</think>"}


async def test_a_prompt_in_tokens_is_read_by_its_end(make: Callable[..., Steerer]):
    ids = tuple(TOKENIZER.encode("x" * 100 + "<think>\n", add_special_tokens=False))
    assert (await make().lead(asking(), Tokenized(ids), None)).form.start is Start.INSIDE


async def test_an_answer_that_goes_on_is_read_by_its_own_text(make: Callable[..., Steerer]):
    for text, expected in [("<think>so", Start.INSIDE), ("so", Start.BEHIND), ("", Start.BEFORE)]:
        message = pb.ChatMessage(role=pb.ROLE_ASSISTANT, text=text)
        generation = asking(chat=pb.ChatInput(messages=[message], continue_final_message=True))
        lead = await make().lead(generation, Tokenized((1,), Rendering("user: <think>\nA:" + text)), None)
        assert lead.form.start is expected


async def test_a_constraint_begins_behind_the_reasoning(make: Callable[..., Steerer]):
    steerer = make()
    generation = asking(constraint=pb.Constraint(regex="a+"))
    for tokenized, text, other in [
        (INSIDE, "why</think>aa", "why</think>\naa"),
        (BEFORE, "<think>why</think>aa", "b"),
        (BEFORE, "aa", "a</think>"),
        (BEHIND, "aa", "<think>why</think>aa"),
    ]:
        lead = await steerer.lead(generation, tokenized, None)
        assert lead.form.is_content_verbatim
        assert written(start(lead), text)
        assert not written(start(lead), other)
        assert isinstance(start(lead), Guide) == (tokenized is not BEHIND)


async def test_who_wants_no_reasoning_gets_none_before_a_constraint(make: Callable[..., Steerer]):
    message = pb.ChatMessage(role=pb.ROLE_USER, text="x")
    asked = asking(chat=pb.ChatInput(messages=[message], enable_thinking=False), constraint=pb.Constraint(regex="a+"))
    lead = await make().lead(asked, BEFORE, None)
    assert lead.form.start is Start.BEHIND
    assert not written(start(lead), "<think>why</think>aa")


async def test_marks_that_are_plain_text_are_found_too(make: Callable[..., Steerer]):
    lead = await make(tokenizer=PLAIN).lead(asking(constraint=pb.Constraint(regex="a+")), INSIDE, None)
    assert lead.form.shown == {}
    assert written(start(lead), "why</think>aa", PLAIN)


async def test_each_sequence_has_a_constraint_of_its_own(make: Callable[..., Steerer]):
    asked = asking(constraint=pb.Constraint(regex="ab"), sampling=pb.SamplingParams(num_sequences=2))
    lead = await make().lead(asked, INSIDE, None)
    first, second = start(lead), start(lead)
    assert written(first, "</think>ab")
    assert written(second, "</think>ab")


async def test_a_budget_alone_is_a_guide(make: Callable[..., Steerer]):
    generation = asking(stopping=pb.StoppingParams(max_reasoning_tokens=2))
    guide = start(await make().lead(generation, INSIDE, None))
    for token_id in TOKENIZER.encode("xy", add_special_tokens=False):
        assert guide.skip() == ()
        guide.advance(token_id)
    assert guide.skip() == tuple(TOKENIZER.encode("</think>", add_special_tokens=False))
    assert (await make().lead(generation, BEHIND, None)).make_constraint is None


@pytest.mark.parametrize("kind", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("marks", [MARKS, ()], ids=["special", "plain"])
async def test_tools_that_must_be_called_are(
    make: Callable[..., Steerer], kind: Callable[[], Any], marks: tuple[str, ...]
):
    tokenizer = tokenizer_of(kind, marks)
    lead = await make(tokenizer=tokenizer).lead(asking(ToolUse(TOOLS, Choice.REQUIRED)), BEHIND, None)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "<[3]>"}}\n</tool_call>'
    constraint = start(lead)
    for token_id in _guarded(tokenizer, call):
        mask = constraint.mask()
        assert mask[token_id // 32] >> np.uint32(token_id % 32) & 1, tokenizer.token_bytes(token_id)
        constraint.advance(token_id)
    assert lead.form.make_parser is not None
    parser = lead.form.make_parser()
    found = [*parser.add(call), *parser.finish()]
    assert [(each.name, each.arguments_json) for each in found if not isinstance(each, str)] == [("f", '{"a":"<[3]>"}')]
    assert set(lead.form.shown.values()) == {mark.encode() for mark in marks}


def _guarded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode without the space that some tokenizers put before a text, and before what follows on a mark."""
    pieces = [piece for piece in re.split("(</?tool_call>)", text) if piece]
    encoded = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
    return [token_id for ids in encoded for token_id in (ids if tokenizer.token_bytes(ids[0]) != b" " else ids[1:])]


MISTRAL = {
    "mistral": ("[TOOL_CALLS][ARGS]", '[TOOL_CALLS]f[ARGS]{"a": "<[3]>"}'),
    "mistral_array": ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "<[3]>"}}]'),
}


@pytest.mark.parametrize("choice", [Choice.REQUIRED, Choice.NAMED])
@pytest.mark.parametrize("marks", [("[TOOL_CALLS]", "[ARGS]"), ("[TOOL_CALLS]",), ()], ids=["both", "one", "none"])
@pytest.mark.parametrize("dialect", MISTRAL)
async def test_marks_of_mistral_are_the_tokens_that_they_are(
    make: Callable[..., Steerer], dialect: str, marks: tuple[str, ...], choice: Choice
):
    template, call = MISTRAL[dialect]
    tokenizer = tokenizer_of(byte_level_tokenizer, marks)
    steerer = make(abilities_of("{{ tools }}" + template), tokenizer)
    other = Tool("g", "", {})
    lead = await steerer.lead(asking(ToolUse((*TOOLS, other), choice, "f")), BEHIND, None)
    assert set(lead.form.shown.values()) == {mark.encode() for mark in marks}
    assert written(start(lead), call, tokenizer)
    assert written(start(lead), call + call, tokenizer) is (dialect == "mistral")
    assert not written(start(lead), call.replace("<[3]>", "b"), tokenizer)
    assert not written(start(lead), call[len("[TOOL_CALLS]") :], tokenizer)
    assert not written(start(lead), "so " + call, tokenizer)
    other_call = call.replace("f", "g", 1)
    assert written(start(lead), other_call, tokenizer) is (choice is Choice.REQUIRED)
    assert lead.form.make_parser is not None
    parser = lead.form.make_parser()
    found = [piece for character in call for piece in parser.add(character)] + parser.finish()
    assert [(each.name, each.arguments_json) for each in found if not isinstance(each, str)] == [("f", '{"a":"<[3]>"}')]
    assert [each for each in found if isinstance(each, str) and each] == []


async def test_tools_that_may_be_called_are_only_looked_for(make: Callable[..., Steerer]):
    lead = await make().lead(asking(ToolUse(TOOLS)), INSIDE, None)
    assert (lead.make_constraint, lead.form.is_content_verbatim) == (None, False)
    assert lead.form.make_parser is not None
    withheld = await make().lead(asking(ToolUse(TOOLS, Choice.NONE)), INSIDE, None)
    assert (withheld.form.make_parser, set(withheld.form.shown.values())) == (None, {b"<think>", b"</think>"})


async def test_a_wrong_constraint_is_refused_by_its_field(make: Callable[..., Steerer]):
    with pytest.raises(ConstraintInvalid) as raised:
        await make().lead(asking(constraint=pb.Constraint(regex="(")), INSIDE, None)
    assert raised.value.field == "spec.constraint.regex"


async def test_a_tool_that_must_be_called_is_refused_by_its_own_schema(make: Callable[..., Steerer]):
    wrong = Tool("g", "", {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}})
    with pytest.raises(ConstraintInvalid) as raised:
        await make().lead(asking(ToolUse((*TOOLS, wrong), Choice.REQUIRED)), INSIDE, None)
    assert raised.value.field == "spec.chat.tools[1].parameters_json_schema"
    lead = await make().lead(asking(ToolUse((*TOOLS, wrong), Choice.NAMED, "f")), INSIDE, None)
    assert lead.make_constraint is not None


async def test_the_callers_deadline_holds(make: Callable[..., Steerer]):
    with pytest.raises(DeadlineExceeded):
        await make().lead(asking(constraint=pb.Constraint(regex="a")), INSIDE, 0)


async def test_callers_in_a_hurry_share_what_is_made_once():
    num_made = 0

    def make_compiler() -> GrammarCompiler:
        nonlocal num_made
        num_made += 1
        return GrammarCompiler(constrained_tokens(TOKENIZER, TOKENIZER.vocab_size, ()))

    steerer = Steerer(ABLE, TOKENIZER, make_compiler, TOKENIZER.vocab_size)
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            await steerer.lead(asking(constraint=pb.Constraint(regex="a")), INSIDE, 0)
    assert written(start(await steerer.lead(asking(constraint=pb.Constraint(regex="a")), BEHIND, None)), "a")
    await steerer.close()
    assert num_made == 1


async def test_what_could_not_be_made_is_made_for_the_next():
    outcomes: list[Exception | None] = [MemoryError(), None]

    def make_compiler() -> GrammarCompiler:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return GrammarCompiler(constrained_tokens(TOKENIZER, TOKENIZER.vocab_size, ()))

    steerer = Steerer(ABLE, TOKENIZER, make_compiler, TOKENIZER.vocab_size)
    with pytest.raises(MemoryError):
        await steerer.lead(asking(constraint=pb.Constraint(regex="a")), BEHIND, None)
    await steerer.lead(asking(constraint=pb.Constraint(regex="a")), BEHIND, None)
    await steerer.close()


# Reading.

CHAT = pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, text="x")], tools=[pb.ToolSpec(name="f")])


def test_what_contradicts_a_constraint_is_refused_by_name():
    regex = pb.Constraint(regex="a")
    with pytest.raises(InvalidField, match=r"spec\.constraint: not together with tools"):
        asking(chat=CHAT, constraint=regex)
    with pytest.raises(InvalidField, match=r"spec\.stopping\.ignore_eos"):
        asking(constraint=regex, stopping=pb.StoppingParams(ignore_eos=True))
    with pytest.raises(InvalidField, match=r"spec\.constraint: nothing"):
        asking(constraint=pb.Constraint())
    withheld = pb.ChatInput()
    withheld.CopyFrom(CHAT)
    withheld.tool_choice.mode = pb.ToolChoice.MODE_NONE
    assert asking(chat=withheld, constraint=regex).steering.constraint is not None


def test_a_budget_is_for_models_that_reason():
    with pytest.raises(UnsupportedOption, match="max_reasoning_tokens"):
        read(base(pb.GenerateRequest, spec=pb.GenerationSpec(stopping=pb.StoppingParams(max_reasoning_tokens=3))))
    assert asking(stopping=pb.StoppingParams(max_reasoning_tokens=0)).steering.max_reasoning_tokens == 0
