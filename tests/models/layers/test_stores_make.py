"""Each layer gets the store that the scheme means it to have."""

import mlx.core as mx
import pytest

from models.checkpoint.kv_scheme import AffineKV, KVScheme, KVSchemeError, PlainKV, TurboKV
from models.layers.stores.coded import CodedStore
from models.layers.stores.full import FullStore
from models.layers.stores.make import store_maker
from models.layers.stores.window import WindowStore
from tests.models.layers.stores import Layer

LAYERS = [Layer(), Layer(window=40), Layer(num_kv_heads=3, head_dim=128)]


@pytest.mark.parametrize("text", ["8", "4", "turbo", "turbo:k2v2"])
def test_packs_layers_that_see_everything(text: str) -> None:
    make = store_maker(KVScheme.from_text(text), LAYERS, mx.float32)
    assert [type(make(number)) for number in range(3)] == [CodedStore, WindowStore, CodedStore]


def test_packs_nothing_where_nothing_is_asked() -> None:
    make = store_maker(KVScheme(), LAYERS, mx.float32)
    assert [type(make(number)) for number in range(3)] == [FullStore, WindowStore, FullStore]


def test_packs_the_layers_of_a_config_each_in_its_way() -> None:
    scheme = KVScheme("config", per_layer={0: AffineKV(4), 1: AffineKV(8), 2: AffineKV(8, 128)})
    layers = [Layer(), Layer(), Layer(head_dim=128), Layer()]
    make = store_maker(scheme, layers, mx.float32)
    sizes: list[int] = []
    for number, layer in enumerate(layers):
        store = make(number)
        tokens = mx.ones((1, layer.num_kv_heads, 256, layer.head_dim))
        store.update(tokens, tokens)
        sizes.append(store.nbytes // 256 // layer.num_kv_heads)
    assert sizes == [80, 144, 272, 512]


@pytest.mark.parametrize("kv", [PlainKV(), AffineKV(4, 32), AffineKV(8), TurboKV(8, 3), TurboKV(5, 5), TurboKV(2, 8)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_token_takes_as_many_bytes_as_the_scheme_says(kv: PlainKV | AffineKV | TurboKV, dtype: mx.Dtype) -> None:
    make = store_maker(KVScheme("affine", kv), [Layer(head_dim=128)], dtype)
    store = make(0)
    tokens = mx.ones((1, 2, 256, 128), dtype)
    store.update(tokens, tokens)
    assert store.nbytes == 2 * 256 * kv.token_bytes(128, dtype.size)


def test_each_call_makes_another_store() -> None:
    make = store_maker(KVScheme.from_text("turbo"), LAYERS, mx.float32)
    first, second = make(0), make(0)
    first.update(mx.ones((1, 2, 3, 64)), mx.ones((1, 2, 3, 64)))
    assert (first.length, second.length) == (3, 0)


def test_refuses_a_model_that_the_scheme_does_not_fit() -> None:
    with pytest.raises(KVSchemeError, match="heads of 80"):
        store_maker(KVScheme.from_text("turbo"), [Layer(head_dim=80)], mx.float32)
