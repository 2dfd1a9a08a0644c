"""A model with all that computing its text takes."""

from dataclasses import dataclass, replace
from functools import partial

from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import NumericPath
from worker.batch import Batch
from worker.detokenizer import Detokenizer
from worker.errors import ContextTooLong, InvalidField
from worker.idle_memory import bound_pool, give_back
from worker.prefix_settings import PrefixSettings
from worker.prefixes import Prefixes
from worker.row import Row
from worker.sampling import Sampler
from worker.sequence import Sequence, TextRequest, seed_of
from worker.text_settings import TextSettings


@dataclass(frozen=True, slots=True)
class LoadedText:
    """What a text workload computes with; belongs to the engine's thread.

    Attributes:
        model: the model itself.
        cache: keys and values of all rows, and of what prompts leave behind.
        batch: steps of rows.
        prefixes: what prompts leave behind.
        max_context_tokens: prompt and output together.
        kv_tokens: whose keys and values the rows may hold together.
        vocab_size: token ids are below it.
    """

    model: LoadedModel
    cache: Cache
    batch: Batch
    prefixes: Prefixes
    max_context_tokens: int
    kv_tokens: int
    vocab_size: int

    @classmethod
    def of(cls, loaded: LoadedModel, settings: TextSettings) -> "LoadedText":
        """Make what a loaded model needs within these bounds."""
        if loaded.path is NumericPath.REFERENCE or not loaded.shares_prefixes:
            # What is found of a prompt would move the cuts of the rest, and so the last bits of its numbers.
            settings = replace(settings, prefixes=PrefixSettings(max_bytes=0))
        bound_pool(loaded)
        context_tokens = settings.context_tokens(loaded.checkpoint.limits.max_position_embeddings)
        settings = settings.fitting(context_tokens, loaded.kv_sizes)
        kv_tokens = settings.kv_tokens(context_tokens, loaded.kv_sizes.rows_bytes)
        prefix_tokens = settings.prefixes.max_bytes // loaded.token_bytes
        cache = loaded.make_cache(settings.max_batch_rows, kv_tokens, prefix_tokens)
        return cls(
            loaded,
            cache,
            Batch(loaded, cache),
            Prefixes(settings.prefixes, cache, loaded),
            context_tokens,
            kv_tokens,
            int(loaded.checkpoint.config["vocab_size"]),
        )

    @property
    def starts_at_once(self) -> bool:
        """Whether starting a forward returns before it is computed."""
        return self.model.device != "cpu"

    def check(self, request: TextRequest) -> None:
        """Refuse what would make the device read outside its arrays; the service names fields better, before.

        Raises:
            InvalidField: no prompt, or a token id that the model does not have.
            ContextTooLong: the prompt leaves no room for output.
        """
        if not request.prompt_ids:
            raise InvalidField("spec", "the prompt has no tokens")
        if len(request.prompt_ids) >= self.max_context_tokens:
            raise ContextTooLong(len(request.prompt_ids), self.max_context_tokens)
        if max(request.prompt_ids) >= self.vocab_size or min(request.prompt_ids) < 0:
            raise InvalidField("spec.token_ids", f"the model has token ids below {self.vocab_size}")
        if any(not 0 <= token_id < self.vocab_size for token_id in request.sampling.logit_bias):
            raise InvalidField("spec.sampling.logit_bias", f"the model has token ids below {self.vocab_size}")

    def rows(self, request: TextRequest) -> list[Row]:
        """Return a row for each output that a request wants, the first the leader of the others."""
        sequences: list[Sequence] = []
        for index in range(request.num_sequences):
            sequences.append(self._sequence(request, index, sequences[0] if sequences else None))
        return [Row(sequence, self.cache, partial(self._sampler, sequence)) for sequence in sequences]

    def _sequence(self, request: TextRequest, index: int, leader: Sequence | None) -> Sequence:
        tokenizer = self.model.tokenizer
        return Sequence(
            request,
            Detokenizer(
                tokenizer.token_bytes,
                strip_leading_space=tokenizer.strips_leading_space,
                shown=request.form.shown,
            ),
            self.max_context_tokens,
            constraint=None if request.make_constraint is None else request.make_constraint(),
            index=index,
            leader=leader,
        )

    def _sampler(self, sequence: Sequence) -> Sampler:
        request = sequence.request
        return Sampler(
            replace(request.sampling, seed=seed_of(request.sampling.seed, sequence.index)),
            request.prompt_ids,
            min_tokens=request.stopping.min_tokens,
            end_ids=request.stopping.eos_token_ids | request.stopping.stop_token_ids,
            exempt_ids=self.model.checkpoint.eos_token_ids,
            top_logprobs=request.top_logprobs,
        )

    def rest(self) -> None:
        """Give back to the system what idling needs no memory for."""
        give_back(self.cache)
