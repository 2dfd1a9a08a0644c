"""The settings tree: its sources, its checks, and that every value is described."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gateway.catalogue import CatalogueModel
from gateway.desired_adapters import DesiredAdapter
from gateway.inventory import Sources
from gateway.sections.defaults import RequestDefaults
from gateway.sections.model import ModelSettings
from gateway.settings import Settings, SettingsError, load_settings
from models.checkpoint.kv_scheme import TURBO_KEY_BITS, TURBO_VALUE_BITS
from worker.defaults import NEVER_ZERO, RANGES

EXAMPLE = Path(__file__).parents[2] / "deploy" / "pomona.toml"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POMONA_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / "pomona.toml"
    path.write_text(text)
    return path


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


ALL = [*leaves(Settings), *leaves(ModelSettings, "models.")]


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings()
    assert (settings.listen, settings.models, settings.limits.max_requests) == ("127.0.0.1:50051", (), 256)


def test_the_file_is_read(tmp_path: Path) -> None:
    file = written(tmp_path, "listen = 'unix:/tmp/x'\n[limits]\nmax_requests = 7\n")
    assert (load_settings(file).listen, load_settings(file).limits.max_requests) == ("unix:/tmp/x", 7)


def test_variables_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "[limits]\nmax_requests = 7\nmax_waiting = 3\n")
    monkeypatch.setenv("POMONA_LIMITS__MAX_REQUESTS", "8")
    limits = load_settings(file).limits
    assert (limits.max_requests, limits.max_waiting) == (8, 3)


@pytest.mark.parametrize(("said", "wanted"), [("off", False), ("on", True)])
def test_native_kernels_can_be_switched_off_by_a_variable(
    monkeypatch: pytest.MonkeyPatch, said: str, wanted: bool
) -> None:
    monkeypatch.setenv("POMONA_CPU_KERNELS", said)
    assert load_settings().cpu_kernels is wanted


@pytest.mark.parametrize(("said", "wanted"), [("off", False), ("on", True)])
def test_mlx_lm_is_allowed_by_a_variable(monkeypatch: pytest.MonkeyPatch, said: str, wanted: bool) -> None:
    assert load_settings().allow_mlx_lm is False
    monkeypatch.setenv("POMONA_ALLOW_MLX_LM", said)
    assert load_settings().allow_mlx_lm is wanted


def test_flags_win_over_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_LIMITS__MAX_REQUESTS", "8")
    monkeypatch.setenv("POMONA_LISTEN", "127.0.0.1:1")
    settings = load_settings(None, {"limits": {"max_requests": 9}})
    assert (settings.limits.max_requests, settings.listen) == (9, "127.0.0.1:1")


def test_models_of_all_sources_join_and_the_same_name_is_replaced(tmp_path: Path) -> None:
    file = written(tmp_path, "[[models]]\nname = 'a'\ncheckpoint = '/a'\n[[models]]\nname = 'b'\ncheckpoint = '/b'\n")
    settings = load_settings(file, {"models": [{"name": "b", "checkpoint": "/c"}, {"name": "d", "checkpoint": "/d"}]})
    assert {one.name: str(one.checkpoint) for one in settings.models} == {"a": "/a", "b": "/c", "d": "/d"}


def test_a_relative_checkpoint_starts_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {"models": [{"name": "a", "checkpoint": "m/a"}]})
    assert settings.models[0].checkpoint == tmp_path / "m" / "a"


def test_the_catalogue_takes_every_setting_of_a_model() -> None:
    settings = ModelSettings(name="a", checkpoint=Path("/a"), aliases=("b",), kv_scheme="config", kv_bytes=1 << 30)
    entry = CatalogueModel(**settings.model_dump())
    assert asdict(entry) == settings.model_dump()
    bare = ModelSettings(name="a", checkpoint=Path("/a")).model_dump()
    assert asdict(CatalogueModel("a", Path("/a"))) == {**bare, "defaults": {}}


def test_defaults_of_requests_reach_the_catalogue_as_far_as_they_are_set(tmp_path: Path) -> None:
    told = {"name": "m", "checkpoint": "/m", "defaults": {"temperature": 0, "max_tokens": 99}}
    found = Sources(load_settings(None, {"models": [told], "hub_models": False}), tmp_path, load_settings).find()
    assert found.models["m"].defaults == {"temperature": 0, "max_tokens": 99}
    assert set(RequestDefaults.model_fields) == set(RANGES)


@pytest.mark.parametrize("name", RequestDefaults.model_fields)
def test_defaults_of_requests_have_the_ranges_of_workers(name: str) -> None:
    low, high = RANGES[name]
    below = low if name in NEVER_ZERO else low - 1
    for value in (below, high + 1):
        with pytest.raises(ValidationError):
            RequestDefaults.model_validate({name: value})
    RequestDefaults.model_validate({name: high})


def test_adapters_of_a_model_reach_the_catalogue(tmp_path: Path) -> None:
    adapters = [{"adapter": "a"}, {"adapter": "b", "source": "org/b", "pinned": True}]
    told = {"name": "m", "checkpoint": "/m", "adapters_folder": "/adapters", "adapters": adapters}
    found = Sources(load_settings(None, {"models": [told], "hub_models": False}), tmp_path, load_settings).find()
    assert found.models["m"].adapters == (DesiredAdapter("a"), DesiredAdapter("b", "org/b", pinned=True))
    assert found.models["m"].adapters_folder == Path("/adapters")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"adapters": [{"adapter": "a"}]}, "needs adapters_folder"),
        ({"adapters_folder": "/x", "adapters": [{"adapter": "../a"}]}, "is no name"),
        ({"adapters_folder": "/x", "adapters": [{"adapter": "a", "source": "/etc"}]}, "is no name"),
        ({"adapters_folder": "/x", "adapters": [{"adapter": "a"}, {"adapter": "a"}]}, "two are named 'a'"),
        ({"adapters_folder": "/x", "adapters": [{"adapter": "a", "path": "/a"}]}, "adapters.0.path"),
        ({"adapters_folder": "/x", "adapters": [{"adapter": f"a{n:060}"} for n in range(200)]}, "can be told of"),
        ({"adapters_bytes": 1}, "adapters_bytes"),
    ],
)
def test_adapters_that_cannot_be_are_refused(told: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, {"models": [{"name": "m", "checkpoint": "/m", **told}]})


@pytest.mark.parametrize("scheme", ["none", "8", "4", "config", "turbo:k8v3", "turbo:k2v8"])
def test_a_scheme_of_keys_and_values_is_taken_as_it_is_spelled(scheme: str) -> None:
    settings = load_settings(None, {"models": [{"name": "a", "checkpoint": "/a", "kv_scheme": scheme}]})
    assert settings.models[0].kv_scheme == scheme


def test_turbo_is_spelled_out() -> None:
    assert ModelSettings(name="a", checkpoint=Path("/a"), kv_scheme="turbo").kv_scheme == "turbo:k8v3"


@pytest.mark.parametrize("key_bits", range(10))
def test_turbo_has_these_bits_and_no_others(key_bits: int) -> None:
    for value_bits in range(10):
        settings = {"models": [{"name": "a", "checkpoint": "/a", "kv_scheme": f"turbo:k{key_bits}v{value_bits}"}]}
        if key_bits in TURBO_KEY_BITS and value_bits in TURBO_VALUE_BITS:
            load_settings(None, settings)
            continue
        what = "value" if key_bits in TURBO_KEY_BITS else "key"
        with pytest.raises(SettingsError, match=f"has turbo {what} bits"):
            load_settings(None, settings)


@pytest.mark.parametrize("experts", ["auto", "resident", "mapped", "slab"])
def test_a_budget_goes_with_experts_that_it_bounds(experts: str) -> None:
    settings = {"models": [{"name": "a", "checkpoint": "/a", "experts": experts, "expert_budget": 1 << 30}]}
    if experts in {"auto", "slab"}:
        assert load_settings(None, settings).models[0].expert_budget == 1 << 30
        return
    with pytest.raises(SettingsError, match=rf"models\.a\.expert_budget.*bounds slabs, and the experts are {experts}"):
        load_settings(None, settings)


@pytest.mark.parametrize("key", [{"experts": "all"}, {"expert_budget": 1000}, {"expert_trace": 3}])
def test_what_experts_cannot_be_is_refused(key: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=rf"models\.a\.{next(iter(key))}"):
        load_settings(None, {"models": [{"name": "a", "checkpoint": "/a", **key}]})


def test_a_relative_trace_starts_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {"models": [{"name": "a", "checkpoint": "/a", "expert_trace": "t.jsonl"}]})
    assert settings.models[0].expert_trace == tmp_path / "t.jsonl"


def test_a_trace_needs_its_folder(tmp_path: Path) -> None:
    model = {"name": "a", "checkpoint": "/a", "expert_trace": str(tmp_path / "no" / "t.jsonl")}
    with pytest.raises(SettingsError, match=rf"models\.a\.expert_trace.*lie in {tmp_path / 'no'}, which is no folder"):
        load_settings(None, {"models": [model]})


def test_a_gguf_file_brings_no_scheme_of_its_own() -> None:
    with pytest.raises(SettingsError, match=r"models\.a\.kv_scheme.*cannot be config.*GGUF"):
        load_settings(None, {"models": [{"name": "a", "checkpoint": "/a.GGUF", "kv_scheme": "config"}]})


def test_a_prefix_folder_needs_a_prefix_cache() -> None:
    with pytest.raises(SettingsError, match=r"worker\.prefix_cache_folder.*needs prefix_cache_bytes above 0"):
        load_settings(None, {"worker": {"prefix_cache_folder": "/kept", "prefix_cache_bytes": 0}})
    assert load_settings(None, {"worker": {"prefix_cache_bytes": 0}}).worker.prefix_cache_folder is None


@pytest.mark.parametrize(
    "scheme",
    ["", "6", "16", "Turbo", "turbo:", "turbo:k8", "turbo:v3k8", "turbo:k-8v3", "turbo:k8v3\n", "turbo:k٨v3", 8],
)
def test_another_spelling_of_a_scheme_is_refused(scheme: object) -> None:
    with pytest.raises(SettingsError, match=r"models\.a\.kv_scheme"):
        load_settings(None, {"models": [{"name": "a", "checkpoint": "/a", "kv_scheme": scheme}]})


def test_a_relative_prefix_folder_starts_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POMONA_WORKER__PREFIX_CACHE_FOLDER", "kept/prefixes")
    assert load_settings().worker.prefix_cache_folder == tmp_path / "kept" / "prefixes"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("lisen = 'x'", "lisen"),
        ("[limits]\nmax_request = 1", "limits.max_request"),
        ("[[models]]\nname = 'a'\ncheckpoint = '/a'\nfolder = 'x'", "models.a.folder"),
        ("[limits]\nmax_requests = 0", "limits.max_requests"),
        ("[limits]\nmax_requests = 'many'", "limits.max_requests"),
        ("[worker]\nprefix_cache_bytes = -1", "worker.prefix_cache_bytes"),
        ("[worker]\nprefix_cache_folder_bytes = 0", "worker.prefix_cache_folder_bytes"),
        ("[[models]]\nname = 'a'\ncheckpoint = '/a'\nkv_bytes = 1000", "models.a.kv_bytes"),
        ("[[models]]\nname = 'a'", "models.a.checkpoint"),
        ("models = 3", "models"),
        ("models = [3]", "models.0"),
        ("[limits", "pomona.toml"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(named)):
        load_settings(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "experts = 'mapped'\nexpert_budget = 70000",
            "models.org/a.expert_budget: bounds slabs, and the experts are mapped; it goes with slab and auto",
        ),
        ("expert_budget = '2 parsecs'", "models.org/a.expert_budget: 2 parsecs is no size, such as 800M, 1.5G or 2GiB"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_by_its_name_in_our_words(tmp_path: Path, text: str, line: str) -> None:
    head = "[[models]]\nname = 'b'\ncheckpoint = '/b'\n[[models]]\nname = 'org/a'\ncheckpoint = '/a'\n"
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, head + text))
    assert str(caught.value) == line


def test_sizes_may_have_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_WORKER__PREFIX_CACHE_BYTES", "1.5GiB")
    model = "[[models]]\nname = 'a'\ncheckpoint = '/a'\nexpert_budget = '2G'\nkv_bytes = '800MB'"
    settings = load_settings(written(tmp_path, model + "\n[grpc]\nmax_request_bytes = '65_536'"))
    assert (settings.models[0].expert_budget, settings.models[0].kv_bytes) == (2 * 10**9, 8 * 10**8)
    assert (settings.worker.prefix_cache_bytes, settings.grpc.max_request_bytes) == (3 << 29, 65536)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "name",
    ["POMONA_LIMITS__MAX_REQUEST", "POMONA_LIMIT__MAX_REQUESTS", "POMONA_LISTN", "POMONA_LISTEN__X", "pomona_listn"],
)
def test_a_variable_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=r"(?i)max_request|limit|listn|listen"):
        load_settings()


@pytest.mark.parametrize("name", ["POMONA_MODELS", "POMONA_LIMITS", "pomona_limits"])
def test_a_variable_that_is_not_json_is_named_and_its_value_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "hunter2")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value).startswith(f"{name}: ")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("file_models", "more_models"), [("3", []), ("[]", 3), ("[3]", 3), ("{a = 1}", [])])
def test_models_that_are_no_list_are_refused_whatever_they_join(
    tmp_path: Path, file_models: str, more_models: object
) -> None:
    file = written(tmp_path, f"models = {file_models}")
    with pytest.raises(SettingsError, match="models"):
        load_settings(file, {"models": more_models})


def test_variables_of_the_client_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("POMONA_TOKEN", "x")
    monkeypatch.setenv("POMONA_CA", "ca.pem")
    monkeypatch.setenv("POMONA_NATIVE", "0")
    assert load_settings() == Settings()


def test_the_tree_is_frozen() -> None:
    settings: Any = load_settings()
    with pytest.raises(ValidationError):
        settings.limits.max_requests = 3


def test_an_error_does_not_repeat_the_value() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"limits": {"max_requests": "hunter2"}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("name", "field"), ALL, ids=[name for name, _ in ALL])
def test_every_value_is_described_with_its_unit_and_default(name: str, field: FieldInfo) -> None:
    description = field.description or ""
    assert re.search(r"Default: .|Required\.", description), name
    if name.endswith("_s"):
        assert "in seconds" in description
    if name.endswith("_bytes"):
        assert "in bytes" in description


@pytest.mark.parametrize(("name", "field"), ALL, ids=[name for name, _ in ALL])
def test_every_number_has_a_range(name: str, field: FieldInfo) -> None:
    bounds = {type(one).__name__ for one in field.metadata}
    kind: Any = field.annotation
    is_number = kind in {int, float, int | None}
    assert not is_number or ({"Ge", "Gt"} & bounds and "Le" in bounds)


def test_the_example_names_every_section_and_says_the_defaults() -> None:
    settings = load_settings(EXAMPLE)
    defaults = Settings()
    for name in ("grpc", "limits", "retries", "worker", "supervision"):
        assert getattr(settings, name) == getattr(defaults, name)
    assert settings.models[0].name == "smollm2"


A_MODEL = "[[models]]\nname = 'a'\ncheckpoint = 'a'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{A_MODEL}prelod = true", "models.a.prelod: there is no such setting; did you mean preload?"),
        ("[limits]\nmax_request = 3", "limits.max_request: there is no such setting; did you mean max_requests?"),
        ("memry = 1", "memry: there is no such setting; did you mean memory?"),
        ("zz = 1", "zz: there is no such setting"),
        (f"{A_MODEL}adapters = [{{ adapter = 'f', pined = true }}]", "pined: there is no such setting"),
    ],
)
def test_a_key_that_is_not_known_is_told_with_the_one_that_may_be_meant(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings(tmp_path / "s.toml")
    assert str(refused.value).endswith(words)
