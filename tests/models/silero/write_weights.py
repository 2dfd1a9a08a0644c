"""Writes `models/silero/silero_vad_v6_16k.safetensors`: the weights of Silero VAD's ONNX form, under plain names.

The wheel has a safetensors file too, but of an earlier training: its probabilities are up to 0.4 off those of every
other form in the same wheel. Run by hand, where onnx, safetensors and the unpacked `silero-vad` wheel 6.2.3 are:

    python -m tests.models.silero.write_weights FOLDER_OF_THE_WHEEL
"""

import sys
from pathlib import Path

import onnx  # pyright: ignore[reportMissingImports]
from onnx import numpy_helper  # pyright: ignore[reportMissingImports]
from safetensors.numpy import save_file

NAMES = {
    "model.stft.forward_basis_buffer": "stft_conv.weight",
    **{
        f"model.encoder.{index}.reparam_conv.{part}": f"conv{index + 1}.{part}"
        for index in range(4)
        for part in ("weight", "bias")
    },
    **{
        f"model.decoder.rnn.{part}_{side}": f"lstm_cell.{part}_{side}"
        for part in ("weight", "bias")
        for side in ("ih", "hh")
    },
    "model.decoder.decoder.2.weight": "final_conv.weight",
    "model.decoder.decoder.2.bias": "final_conv.bias",
}


def main() -> None:
    model = onnx.load(str(Path(sys.argv[1]) / "silero_vad/data/silero_vad_16k_op15.onnx"))
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    tensors = {name: found[stored].astype("float32") for stored, name in NAMES.items()}
    folder = Path(__file__).parents[3] / "models" / "silero"
    save_file(tensors, str(folder / "silero_vad_v6_16k.safetensors"), metadata={"source": "silero-vad 6.2.3, MIT"})


if __name__ == "__main__":
    main()
