"""`token`: the tokens of a server's callers, made, listed and revoked in the file that the server reads."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gateway.cli import output
from gateway.cli.failures import SetupError, UsageError
from gateway.cli.settings import config_folder
from gateway.cli.verb import JsonFlag, verb
from gateway.principal import EVERY_MODEL, SCOPES
from gateway.token_file import TokenEntry, TokenFileError, change_tokens, local_time, new_token, read_tokens

Name = Annotated[str, typer.Argument(metavar="NAME")]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        envvar="POMONA_SECURITY__TOKENS",
        metavar="FILE",
        help="The file of tokens. Default: tokens.json in this user's folder of settings.",
    ),
]
UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_SPAN = re.compile(r"([1-9]\d{0,5})([mhd])", re.ASCII)

GROUP = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@GROUP.callback()
def token() -> None:
    """Make, list and revoke the tokens of a server's callers."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token is good for."""

    scope: Annotated[list[str], typer.Option(metavar="SCOPE", help=f"What it may do: {', '.join(SCOPES)}; may repeat.")]
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="The models that it may use, * for any characters; may repeat."),
    ] = None
    expires: Annotated[str, typer.Option(metavar="SPAN", help="When it ends: 90m, 12h, 30d, or never.")] = "never"
    rate: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Calls a minute.")] = None
    streams: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Calls that are open at once.")] = None
    queue_share: Annotated[
        float | None, typer.Option(min=0.001, max=1.0, metavar="SHARE", help="Of the server's places to wait in.")
    ] = None
    group: Annotated[
        str, typer.Option(metavar="GROUP", help="Callers of one group share cached prompts. Default: NAME alone.")
    ] = ""
    certificate: Annotated[
        str,
        typer.Option(metavar="NAME", help="No token: whoever shows a client certificate with this name."),
    ] = ""


@verb
def create(*, name: Name, grant: Grant, tokens: TokensFile = None, as_json: JsonFlag = False) -> None:
    """Make a token for a caller and print it, once: the file holds its hash.

    A running server knows it within a second or two.

    With --json: {"token": "...", "entry": {...}}, the entry as of
    `pomona token list --json`.

    Example:
    [bold]pomona token create ci --scope generate --scope models.read --model 'qwen*' --expires 30d > ci.token[/bold]
    [bold]pomona chat qwen3 --token-file ci.token "Why is the sky blue?"[/bold]
    """
    path = tokens or _own_file()
    made = new_token()
    entry = _entry(name, grant, made.id, "" if grant.certificate else made.sha256)
    _changed(path, lambda entries: _with(entries, entry))
    if as_json:
        text = {} if grant.certificate else {"token": made.text}
        output.emit({**text, "entry": _shown(entry)}, indent=2)
    elif not grant.certificate:
        output.line(made.text)
    until = f"until {local_time(entry.expires)}" if entry.expires else "until it is revoked"
    output.notice(f"{name} may call {until}, on servers that were started with --tokens {path}")


@verb
def list_tokens(*, tokens: TokensFile = None, as_json: JsonFlag = False) -> None:
    """List the tokens: whose they are and what they are good for.

    With --json: {"tokens": [...]}, each with "name", "id", "certificate",
    "group", "scopes", "models", "created", "expires", "ratePerMinute",
    "streams" and "queueShare"; null where there is none.
    """
    path = tokens or _own_file()
    if not path.exists():
        raise SetupError(f"{path} is not there; the first `pomona token create` makes it, and --tokens names another")
    try:
        entries = read_tokens(path)
    except TokenFileError as error:
        raise SetupError(str(error)) from error
    if as_json:
        output.emit({"tokens": [_shown(one) for one in entries]}, indent=2)
    elif not entries:
        output.notice(f"{path} holds no tokens")
    else:
        headers = ("NAME", "ID", "SCOPES", "MODELS", "GROUP", "EXPIRES", "RATE", "STREAMS")
        output.table(headers, [_row(one) for one in entries])


@verb
def revoke(*, name: Name, tokens: TokensFile = None, as_json: JsonFlag = False) -> None:
    """Revoke a caller's token: a running server ends its calls within a second or two.

    With --json: {"revoked": NAME}.
    """
    path = tokens or _own_file()
    _changed(path, lambda entries: _without(entries, name))
    if as_json:
        output.emit({"revoked": name})
    else:
        output.notice(f"the token of {name} is revoked")


for _name, _function in (("create", create), ("list", list_tokens), ("revoke", revoke)):
    GROUP.command(_name)(_function)


def _entry(name: str, grant: Grant, token_id: str, sha256: str) -> TokenEntry:
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        return TokenEntry(
            name=name,
            id=token_id,
            sha256=sha256 or None,
            certificate=grant.certificate or None,
            group=grant.group or name,
            scopes=tuple(dict.fromkeys(grant.scope)),
            models=tuple(grant.model or (EVERY_MODEL,)),
            created=now,
            expires=_end(now, grant.expires),
            rate_per_minute=grant.rate,
            streams=grant.streams,
            queue_share=grant.queue_share,
        )
    except ValidationError as error:
        raise UsageError(_problem(error)) from None


def _problem(error: ValidationError) -> str:
    """Say what is wrong by the option that set it."""
    first = error.errors(include_input=False, include_url=False)[0]
    options = {"name": "NAME", "models": "--model", "group": "--group", "certificate": "--certificate"}
    if first["loc"] and first["loc"][0] in options:
        return f"{options[str(first['loc'][0])]}: letters, digits, '.', '_' and '-' make a name; '*' and '/' in --model"
    return f"--scope: {first.get('ctx', {}).get('error', first['msg'])}"


def _end(now: datetime, text: str) -> datetime | None:
    if text == "never":
        return None
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"--expires: {text!r} is no span such as 90m, 12h or 30d, nor never")
    return now + int(found[1]) * UNITS[found[2]]


def _with(entries: Iterable[TokenEntry], entry: TokenEntry) -> list[TokenEntry]:
    kept = list(entries)
    if any(one.name == entry.name for one in kept):
        raise UsageError(f"{entry.name} has a token already; to replace it: pomona token revoke {entry.name}")
    return [*kept, entry]


def _without(entries: Iterable[TokenEntry], name: str) -> list[TokenEntry]:
    before = list(entries)
    kept = [one for one in before if one.name != name]
    if len(kept) == len(before):
        raise UsageError(f"there is no token of {name}; there are: {', '.join(one.name for one in kept) or 'none'}")
    return kept


def _changed(path: Path, change: Callable[[tuple[TokenEntry, ...]], list[TokenEntry]]) -> None:
    try:
        change_tokens(path, change)
    except TokenFileError as error:
        raise SetupError(str(error)) from error


def _own_file() -> Path:
    """Return this user's file, whose folder is there afterwards.

    Raises:
        SetupError: the folder cannot be made.
    """
    folder = config_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{folder} cannot be made: {error.strerror}") from error
    return folder / "tokens.json"


def _shown(entry: TokenEntry) -> dict[str, Any]:
    """Return an entry for `--json`, without its hash, and its keys as all of them are written there."""
    facts: dict[str, Any] = entry.model_dump(mode="json", exclude={"sha256"})
    return {re.sub(r"_(\w)", lambda found: found[1].upper(), key): value for key, value in facts.items()}


def _row(entry: TokenEntry) -> tuple[str, ...]:
    return (
        entry.name,
        entry.id if entry.certificate is None else f"certificate {entry.certificate}",
        " ".join(entry.scopes),
        " ".join(entry.models),
        entry.group,
        local_time(entry.expires) if entry.expires else "never",
        f"{entry.rate_per_minute}/min" if entry.rate_per_minute else "",
        str(entry.streams or ""),
    )
