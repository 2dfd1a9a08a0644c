"""How this project speaks to the hub: the address of a file, the headers of a request, the limit of an answer."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, hf_hub_download, hf_hub_url  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.utils import build_hf_headers  # pyright: ignore[reportUnknownVariableType]

LIBRARY = "pomona"


def request_headers() -> dict[str, str]:
    """Return the headers of a request: who asks, and the token where there is one."""
    return build_hf_headers(library_name=LIBRARY)


def file_address(repository: str, name: str, commit: str) -> str:
    """Return where a file is downloaded from."""
    return hf_hub_url(repository, name, revision=commit)


def link_into_snapshot(repository: str, name: str, commit: str, cache: Path) -> None:
    """Have a file in the snapshot: a link to its blob where that is there, else it is downloaded first."""
    hf_hub_download(repository, name, revision=commit, cache_dir=cache, library_name=LIBRARY)


def silence_limit_s() -> float:
    """Return how long the hub may say nothing, in seconds (HF_HUB_DOWNLOAD_TIMEOUT)."""
    return constants.HF_HUB_DOWNLOAD_TIMEOUT
