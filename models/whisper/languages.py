"""The languages that Whisper knows, in the order of their tokens, and how clients may name them.

Source: the order of OpenAI's multilingual vocabulary; Cantonese came with large-v3, as the hundredth.
"""

from __future__ import annotations

_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi "
    "ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd "
    "gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = tuple(_CODES.split())
# Written without spaces between words.
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
# Today's subtag of ISO 639 on the left where Whisper has an older or a wider one.
_OTHER_SUBTAGS = {
    "cmn": "zh",
    "fil": "tl",
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "jv": "jw",
    "mo": "ro",
    "nb": "no",
    "pes": "fa",
}
_YUE_SUBTAGS = ("yue",)


def language_of(tag: str, known: tuple[str, ...] = LANGUAGES) -> str | None:
    """Return Whisper's code for a BCP-47 tag, None where it is none of `known`.

    Regions and scripts are dropped: `en-GB` is `en`. `zh-yue` is Cantonese where the model knows it, else Chinese.
    """
    subtags = tag.strip().lower().replace("_", "-").split("-")
    code = _OTHER_SUBTAGS.get(subtags[0], subtags[0])
    if code == "zh" and any(subtag in _YUE_SUBTAGS for subtag in subtags[1:]) and "yue" in known:
        return "yue"
    return code if code in known else None
