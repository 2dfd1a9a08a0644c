"""A setting for keys and values is spelled out or refused, as the models read it."""

from pathlib import Path

import pytest

from gateway.kv_scheme import KV_SCHEME_FORMS, checked_kv_scheme
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("none", "none"),
        ("8", "8"),
        ("4:g32", "4:g32"),
        ("8:g64", "8"),
        ("8:g128:s512", "8:g128:s512"),
        ("8:g064:s0512", "8:s512"),
        ("4:s0", "4"),
        ("config:s32", "config:s32"),
        ("turbo", "turbo:k8v3"),
        ("turbo:s64", "turbo:k8v3:s64"),
        ("turbo:k4v2:s64", "turbo:k4v2:s64"),
    ],
)
def test_a_scheme_is_spelled_out(text: str, spelled: str) -> None:
    assert checked_kv_scheme(text, None) == spelled
    assert checked_kv_scheme(spelled, None) == spelled


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("8:g16", "has the group size 16; it must be one of 32, 64, 128"),
        ("turbo:g32", "has a group size, which only 8 and 4 take"),
        ("turbo:k8v3:g32", "has a group size, which only 8 and 4 take"),
        ("config:g32:s32", "has a group size, which only 8 and 4 take"),
        ("none:g32", "has a group size, which only 8 and 4 take"),
        ("none:s32", "has a start, which none does not take"),
        ("4:s33", "starts at 33; it must be a multiple of 32 tokens"),
        ("turbo:k3v3:s32", "has turbo key bits 3; they must be one of 2, 4, 5, 8"),
        ("turbo:k8:s32", 'for turbo must look like "turbo:k<bits>v<bits>"'),
        *((text, f"must be {KV_SCHEME_FORMS}") for text in ("", ":s32", "8:", "8:g", "8:s32:g32", "8:s32\n", "6:s32")),
        ("8:s12345678", f"must be {KV_SCHEME_FORMS}"),
    ],
)
def test_what_is_not_offered_is_refused_by_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".+") as raised:
        checked_kv_scheme(text, None)
    assert str(raised.value) == problem


def test_config_is_for_folders_also_from_a_position_on() -> None:
    with pytest.raises(ValueError, match="GGUF"):
        checked_kv_scheme("config:s32", Path("/a.gguf"))


NAMES = ("none", "8", "4", "turbo", "turbo:k4v5", "turbo:k9v9", "5", "config")
GROUPS = ("", ":g32", ":g64", ":g16", ":g", ":g00032")
STARTS = ("", ":s0", ":s64", ":s65", ":s", ":s00000064", ":s64 ")


@pytest.mark.parametrize("name", NAMES)
def test_gateway_and_worker_take_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "kv_config.json").write_text('[{"layer_idx": 0, "bits": 8}]')
    num_taken = 0
    for text in (name + group + start for group in GROUPS for start in STARTS):
        meant = None
        try:
            meant = KVScheme.from_text(text, folder=tmp_path)
            num_taken += 1
        except KVSchemeError:
            with pytest.raises(ValueError, match=r".+"):
                checked_kv_scheme(text, tmp_path)
        if meant is not None:
            assert KVScheme.from_text(checked_kv_scheme(text, tmp_path), folder=tmp_path) == meant
    assert num_taken > 0 or name in {"5", "turbo:k9v9"}
