"""The loaded model as the services use it."""

from dataclasses import dataclass

from pomona.v1 import common_pb2

from worker.prompting import Prompter
from worker.steerer import Steerer
from worker.validation import ModelFacts


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a request needs beside the engine.

    Attributes:
        prompter: makes token ids of prompts.
        steerer: prepares what leads outputs.
        facts: bounds and defaults.
        eos_token_ids: every id that ends a text.
        resolved: which model answers, exactly.
    """

    prompter: Prompter
    steerer: Steerer
    facts: ModelFacts
    eos_token_ids: frozenset[int]
    resolved: common_pb2.ResolvedModel
