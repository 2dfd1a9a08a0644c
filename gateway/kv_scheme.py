"""How a setting for keys and values is spelled; which bits there are, only the worker knows."""

import re

KV_SCHEME_FORMS = "none, 8, 4, config, turbo or turbo:k<bits>v<bits>"
_FORM = re.compile(r"none|8|4|config|turbo(:k[0-9]{1,4}v[0-9]{1,4})?")


def is_kv_scheme(text: str) -> bool:
    """Say whether `text` is spelled like a scheme."""
    return _FORM.fullmatch(text) is not None
