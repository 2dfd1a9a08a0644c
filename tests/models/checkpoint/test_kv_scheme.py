"""A setting is read or refused with its own reason, and each layer gets what it means or a reason why not."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint.errors import CheckpointMissing
from models.checkpoint.kv_scheme import AffineKV, KVScheme, KVSchemeError, LayerShape, PlainKV, TurboKV

FULL, WINDOW = LayerShape(64), LayerShape(64, is_window=True)


def refusal(text: str) -> str:
    with pytest.raises(KVSchemeError) as caught:
        KVScheme.from_text(text, option="kv")
    assert caught.value.option == "kv"
    assert str(caught.value) == f"kv: {caught.value.problem}"
    return caught.value.problem


@pytest.mark.parametrize(
    ("text", "kind", "every", "word"),
    [
        ("", "none", PlainKV(), "none"),
        ("none", "none", PlainKV(), "none"),
        ("8", "affine", AffineKV(8, 64), "kv8-g64"),
        ("4", "affine", AffineKV(4, 64), "kv4-g64"),
        ("turbo", "turbo", TurboKV(8, 3), "turbo-k8v3"),
        ("turbo:k4v2", "turbo", TurboKV(4, 2), "turbo-k4v2"),
        ("turbo:k08v5", "turbo", TurboKV(8, 5), "turbo-k8v5"),
        ("4:g32", "affine", AffineKV(4, 32), "kv4-g32"),
        ("8:s512", "affine", AffineKV(8, 64, 512), "kv8-g64-start512"),
        ("8:g128:s32", "affine", AffineKV(8, 128, 32), "kv8-g128-start32"),
        ("turbo:s64", "turbo", TurboKV(8, 3, 64), "turbo-k8v3-start64"),
        ("turbo:k4v2:s64", "turbo", TurboKV(4, 2, 64), "turbo-k4v2-start64"),
    ],
)
def test_reads_a_setting(text: str, kind: str, every: object, word: str) -> None:
    scheme = KVScheme.from_text(text)
    assert (scheme.kind, scheme.every, scheme.word) == (kind, every, word)
    assert scheme.is_plain == (kind == "none")


@pytest.mark.parametrize("key_bits", range(12))
@pytest.mark.parametrize("value_bits", range(12))
def test_turbo_takes_the_bits_that_it_has_tables_for(key_bits: int, value_bits: int) -> None:
    text = f"turbo:k{key_bits}v{value_bits}"
    if key_bits not in (2, 4, 5, 8):
        assert refusal(text) == f"turbo key bits must be one of 2, 4, 5, 8 (got {key_bits})"
    elif value_bits not in (2, 3, 4, 5, 8):
        assert refusal(text) == f"turbo value bits must be one of 2, 3, 4, 5, 8 (got {value_bits})"
    else:
        assert KVScheme.from_text(text).every == TurboKV(key_bits, value_bits)


@pytest.mark.parametrize(
    "text", ["turbo:", "turbo:k8", "turbo:k8v", "turbo:v3k8", "turbo:k8v3 ", "turbo:k-8v3", "turbo:k8v3x", "turbo:k²v3"]
)
def test_refuses_turbo_of_another_form(text: str) -> None:
    assert refusal(text) == f'the turbo spec must look like "turbo:k<bits>v<bits>" (got "{text}")'


@pytest.mark.parametrize("text", ["fp8", "16", " 8", "None", "TURBO", "turbo4", "kv8", "config.json"])
@pytest.mark.parametrize("sizes", ["", ":s32"])
def test_refuses_what_is_no_scheme(text: str, sizes: str) -> None:
    assert refusal(text + sizes).startswith("must be none, 8, 4, config, turbo or turbo:k<bits>v<bits>, then :g<size> ")


@pytest.mark.parametrize(
    "text", ["8:", "8:g", "8:s", "8:s-32", "8:s32:g32", "8:s32:s32", "4:g32:g32", "8:x1", "8:s32\n"]
)
def test_refuses_sizes_of_another_form(text: str) -> None:
    assert refusal(text).startswith("must be none, 8, 4, ")


@pytest.mark.parametrize("text", ["turbo:g32", "turbo:k8v3:g64", "config:g32:s32", "none:g64"])
def test_only_8_and_4_have_a_group_size(text: str) -> None:
    assert refusal(text) == f'only 8 and 4 take a group size (got "{text}")'


@pytest.mark.parametrize("text", ["none:s32", ":s32", "none:s0"])
def test_nothing_starts_where_nothing_is_packed(text: str) -> None:
    assert refusal(text) == f'none takes no start (got "{text}")'


@given(st.text(max_size=300) | st.from_regex(r"turbo:k\d{0,6000}v\d*", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    error = problem_of(text)
    assert error.isprintable()
    assert len(error) <= 200


def problem_of(text: str) -> str:
    """Return why a text is refused, empty where it is not."""
    try:
        KVScheme.from_text(text)
    except KVSchemeError as error:
        return error.problem
    return ""


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("start", [0, 32, 5024])
def test_takes_a_group_size_and_a_start(group_size: int, start: int) -> None:
    scheme = KVScheme.from_text(f"8:g{group_size}:s{start}")
    assert scheme.every == AffineKV(8, group_size, start)
    assert scheme.word == f"kv8-g{group_size}" + (f"-start{start}" if start else "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("8:g16", "the group size must be one of 32, 64, 128 (got 16)"),
        ("4:s5000", "the start must be a multiple of 32 tokens (got 5000)"),
        ("turbo:s1", "the start must be a multiple of 32 tokens (got 1)"),
    ],
)
def test_refuses_other_sizes(text: str, problem: str) -> None:
    assert refusal(text) == problem


def folder_with(folder: Path, content: str) -> Path:
    (folder / "kv_config.json").write_text(content)
    return folder


def test_config_packs_the_layers_that_the_checkpoint_names(tmp_path: Path) -> None:
    content = '[{"layer_idx": 2, "bits": 4, "group_size": 32}, {"layer_idx": 0, "bits": 8, "group_size": 64}]'
    scheme = KVScheme.from_text("config:s32", folder=folder_with(tmp_path, content))
    assert scheme.for_layers([FULL] * 3) == (AffineKV(8, 64, 32), PlainKV(), AffineKV(4, 32, 32))
    assert not scheme.is_plain


def test_the_word_of_a_config_stands_for_its_content(tmp_path: Path) -> None:
    contents = (
        '[{"layer_idx": 1, "bits": 8}, {"layer_idx": 0, "bits": 4, "group_size": 64}]',
        '[{"layer_idx": 0, "bits": 4, "note": 1}, {"layer_idx": 1, "bits": 8, "group_size": 64}]',
        '[{"layer_idx": 0, "bits": 4}]',
    )
    words = [KVScheme.from_text("config", folder=folder_with(tmp_path, content)).word for content in contents]
    assert words[0] == words[1] != words[2]
    assert all(word.startswith("config-") for word in words)
    started = KVScheme.from_text("config:s32", folder=tmp_path)
    assert started.word == f"{words[2]}-start32"


def test_config_needs_a_folder_and_its_file(tmp_path: Path) -> None:
    assert "this is no folder" in refusal("config")
    with pytest.raises(CheckpointMissing):
        KVScheme.from_text("config", folder=tmp_path)


def test_config_must_fit_the_model(tmp_path: Path) -> None:
    content = '[{"layer_idx": 3, "bits": 4}]'
    scheme = KVScheme.from_text("config", folder=folder_with(tmp_path, content))
    with pytest.raises(KVSchemeError, match="names layer 3 of a model of 3 layers"):
        scheme.for_layers([FULL] * 3)


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_turbo_packs_these_heads(head_dim: int) -> None:
    assert KVScheme.from_text("turbo").for_layer(0, head_dim) == TurboKV(8, 3)


@pytest.mark.parametrize("head_dim", [32, 80, 96, 192, 1024])
def test_turbo_refuses_other_heads(head_dim: int) -> None:
    with pytest.raises(KVSchemeError, match=f"layer 7 has heads of {head_dim}; turbo packs 64, 128, 256, 512"):
        KVScheme.from_text("turbo").for_layer(7, head_dim)


@pytest.mark.parametrize(("head_dim", "group_size"), [(80, 32), (96, 64), (64, 128)])
def test_affine_refuses_heads_that_are_no_whole_groups(head_dim: int, group_size: int) -> None:
    with pytest.raises(KVSchemeError, match=f"no multiple of the group size {group_size}"):
        KVScheme.from_text(f"4:g{group_size}").for_layer(0, head_dim)


@pytest.mark.parametrize("text", ["8", "turbo"])
def test_layers_that_see_a_window_stay_as_computed_and_it_is_told_once(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheme = KVScheme.from_text(text)
    shapes = [WINDOW, FULL, LayerShape(80, is_window=True)]
    with caplog.at_level(logging.WARNING):
        assert scheme.for_layers(shapes) == (PlainKV(), scheme.every, PlainKV())
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 layers see a window only and keep their keys and values as computed"
    ]


def test_nothing_is_told_where_nothing_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    assert KVScheme().for_layers([WINDOW, FULL]) == (PlainKV(), PlainKV())
    assert KVScheme.from_text("8").for_layers([FULL]) == (AffineKV(8),)
    assert not caplog.records


def test_refuses_a_model_whose_layers_all_see_a_window() -> None:
    with pytest.raises(KVSchemeError, match="no layer that sees everything"):
        KVScheme.from_text("turbo").for_layers([WINDOW] * 2)


def test_turbo_of_8_and_3_bits_takes_200_bytes_where_bf16_takes_512() -> None:
    assert (TurboKV(8, 3).token_bytes(128, 2), PlainKV().token_bytes(128, 2)) == (200, 512)


@pytest.mark.parametrize(("bits", "group_size"), [(8, 64), (4, 32), (4, 128)])
def test_affine_takes_bits_and_four_bytes_a_group(bits: int, group_size: int) -> None:
    assert AffineKV(bits, group_size).token_bytes(128, 2) == 2 * 128 * (bits / 8 + 4 / group_size)
